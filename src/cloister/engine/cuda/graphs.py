"""The whole local training of a chunk of clients as one CUDA graph: captured once, replayed in every round.

A graph has fixed shapes and fixed places in memory. So all chunks of a run have the same number of clients, numbers of
steps are rounded up to one of a few (both with a mask), and what changes from round to round (the model, the round's
number and keys, who takes part, noise shares) is copied into the graph's inputs. Batches are drawn, gathered and
normalized inside. Between the start of a round and its end the host only queues work. What is compiled is a step, whose
shapes never change: another cohort, or clients with other numbers of samples, compile nothing.

Batches and noise that are secret are drawn on the host for every step. Where there are such, a step is captured instead
of a round, one for each width of a batch, and replayed step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloister.client.batches import Chunk, Drawn, Shape, rounded_up, shapes_of
from cloister.core.state import flatten, unflatten
from cloister.engine.chunking import ChunkProgram, same_program
from cloister.engine.compilation import Compiled, captured, traced
from cloister.engine.cuda.launches import warm_up
from cloister.engine.fusion import fused, start_workers
from cloister.engine.vectorized import Vectorized
from cloister.round import Federation, RoundPlan, Sum

Shapes = tuple[Shape, ...]


@dataclass
class Graphed:
    """`chunk` clients at a time, and as many places where there are fewer, each chunk a replay of a graph.

    `compiled`: of fewer and larger kernels.
    """

    chunk: int
    compiled: bool = False
    _fed: Federation | None = field(default=None, repr=False)
    _programs: dict[bool, ChunkProgram] = field(default_factory=dict, repr=False)
    _everybody: Shapes = field(default=(), repr=False)
    _graphs: dict[Shapes, _Graph] = field(default_factory=dict, repr=False)
    _steps: Vectorized | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return "compiled" if self.compiled else "graphed"

    def total(self, plan: RoundPlan) -> Sum:
        fed = plan.fed
        if fed.method.local.batching.batch_sampling or fed.method.local.client_state:
            return self._step_by_step(fed).total(plan)
        if self._fed is not fed:  # graphs hold on to the data and the model they were captured with
            self._programs = self._programs if same_program(self._fed, fed) else {}
            self._fed, self._graphs = fed, {}
            self._everybody = shapes_of(fed.population.counts, fed.method.local, rounded_up)
        places = _places(fed, self.chunk)
        total, nonfinite = None, torch.zeros((), dtype=torch.int64, device=plan.offer.w.device)
        for clients in torch.split(plan.by_size, places):
            part, bad = self._graph_for(plan, clients, places).replay(plan, clients)
            total = part.clone() if total is None else total.add_(part)
            nonfinite += bad
        assert total is not None
        return total, nonfinite

    def _step_by_step(self, fed: Federation) -> Vectorized:
        if self._steps is None:
            how = captured(fused if self.compiled else traced)
            self._steps = Vectorized(_places(fed, self.chunk), how, 0, same_layout=True)
        return self._steps

    def _graph_for(self, plan: RoundPlan, clients: Tensor, places: int) -> _Graph:
        fed, local = plan.fed, plan.fed.method.local
        these = shapes_of(fed.population.counts[clients], local, rounded_up)
        shapes = tuple(
            shape._replace(most=max(shape.most, min(whole.most, phase.batching.batch_size)), ragged=whole.ragged)
            for phase, shape, whole in zip(local.phases, these, self._everybody, strict=True)
        )
        if shapes not in self._graphs:
            pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
            program = self._program_for(fed, any(shape.ragged for shape in self._everybody))
            self._graphs[shapes] = _Graph(plan, clients, places, shapes, pool, program)
        return self._graphs[shapes]

    def _program_for(self, fed: Federation, ragged: bool) -> ChunkProgram:
        """One for a run: its steps are those of any client there is."""
        if ragged not in self._programs:
            if self.compiled:
                start_workers()
            self._programs[ragged] = (
                ChunkProgram(fed, ragged, lambda step: Compiled(step, fused, 0), shared_start=False)
                if self.compiled
                else ChunkProgram(fed, ragged, lambda step: step, fuses=False, shared_start=False)
            )
        return self._programs[ragged]


def _places(fed: Federation, chunk: int) -> int:
    return min(chunk, fed.population.clients)


class _Graph:
    """A captured chunk with its inputs and outputs."""

    def __init__(
        self, plan: RoundPlan, clients: Tensor, places: int, shapes: Shapes, pool: Any, program: ChunkProgram
    ) -> None:
        self.places, w = places, plan.offer.w
        self.w = torch.empty_like(w)
        self.told = {name: torch.empty_like(tensor) for name, tensor in flatten(plan.offer.broadcast).items()}
        self.numbers = torch.zeros(3 + self.places, dtype=torch.int64, device=w.device)
        shares = plan.shares(clients[:1])
        self.shares = shares.new_zeros(self.places, shares.shape[1])
        self._feed(plan, clients)
        broadcast = unflatten(self.told)

        def compute(steps: int | None = None) -> Sum:
            round, batch_key, model_key, coded = (*self.numbers[:3], self.numbers[3:])
            counted = coded >= 0  # a place that is only filled holds ~client
            who = torch.where(counted, coded, ~coded)
            chunk = Chunk(round.double(), batch_key, model_key, self.w, broadcast, who, counted, self.shares, {})
            found, _ = program.total(plan.fed.population, chunk, shapes, Drawn([], None), steps)
            return found

        with torch.cuda.device(w.device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are compiled and loaded before the capture
                warm_up(lambda: compute(steps=1))
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):  # others may compile
                self.part, self.nonfinite = compute()

    def replay(self, plan: RoundPlan, clients: Tensor) -> Sum:
        """The sum over these clients; it stays valid until the next replay of any graph."""
        self._feed(plan, clients)
        self.graph.replay()
        return self.part, self.nonfinite

    def _feed(self, plan: RoundPlan, clients: Tensor) -> None:
        self.w.copy_(plan.offer.w)
        for name, tensor in flatten(plan.offer.broadcast).items():
            self.told[name].copy_(tensor)
        filler = ~clients[-1:].expand(self.places - len(clients))
        numbers = torch.cat([torch.tensor([plan.offer.round, *plan.keys()]), clients, filler]).pin_memory()
        self.numbers.copy_(numbers, non_blocking=True)
        if self.shares.shape[1]:
            self.shares[: len(clients)] = plan.shares(clients)
