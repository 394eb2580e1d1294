"""The whole local training of a chunk of clients as one CUDA graph: captured once, replayed in every round.

A graph has fixed shapes and fixed places in memory. So the number of clients and their numbers of steps are rounded
up to one of a few (with a mask), and what changes from round to round (the model, the round's number and keys, who
takes part, noise shares) is copied into the graph's inputs. Batches are drawn, gathered and normalized inside.
Between the start of a round and its end the host only queues work.

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
from cloister.engine.chunking import ChunkProgram, places_for, same_program
from cloister.engine.compilation import Compiled, captured, fused, traced
from cloister.engine.vectorized import Vectorized
from cloister.round import Federation, RoundPlan, Sum

Key = tuple[int, tuple[Shape, ...]]


@dataclass
class Graphed:
    """`chunk` clients at a time, at most, each chunk a replay of a graph; `compiled`, of fewer and larger kernels."""

    chunk: int
    compiled: bool = False
    _fed: Federation | None = field(default=None, repr=False)
    _programs: dict[bool, ChunkProgram] = field(default_factory=dict, repr=False)
    _graphs: dict[Key, _Graph] = field(default_factory=dict, repr=False)
    _steps: Vectorized | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return "compiled" if self.compiled else "graphed"

    def total(self, plan: RoundPlan) -> Sum:
        fed = plan.fed
        if fed.method.local.batching.batch_sampling or fed.method.local.client_state:
            return self._step_by_step().total(plan)
        if self._fed is not fed:  # graphs hold on to the data and the model they were captured with
            self._programs = self._programs if same_program(self._fed, fed) else {}
            self._fed, self._graphs = fed, {}
        total, nonfinite = None, torch.zeros((), dtype=torch.int64, device=plan.offer.w.device)
        for clients in torch.split(plan.by_size, self.chunk):
            part, bad = self._graph_for(plan, clients).replay(plan, clients)
            total = part.clone() if total is None else total.add_(part)
            nonfinite += bad
        assert total is not None
        return total, nonfinite

    def _step_by_step(self) -> Vectorized:
        if self._steps is None:
            self._steps = Vectorized(self.chunk, captured(fused if self.compiled else traced), 0)
        return self._steps

    def _graph_for(self, plan: RoundPlan, clients: Tensor) -> _Graph:
        fed = plan.fed
        shapes = shapes_of(fed.population.counts[clients], fed.method.local, rounded_up)
        key = (places_for(fed, len(clients), self.chunk), shapes)
        if key not in self._graphs:
            pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
            self._graphs[key] = _Graph(plan, clients, key, pool, self._program(fed, shapes))
        return self._graphs[key]

    def _program(self, fed: Federation, shapes: tuple[Shape, ...]) -> ChunkProgram:
        ragged = any(shape.ragged for shape in shapes)
        if ragged not in self._programs:
            self._programs[ragged] = (
                ChunkProgram(fed, ragged, lambda step: Compiled(step, fused, 0))
                if self.compiled
                else ChunkProgram(fed, ragged, lambda step: step, aligned=False)
            )
        return self._programs[ragged]


class _Graph:
    """A captured chunk with its inputs and outputs."""

    def __init__(self, plan: RoundPlan, clients: Tensor, key: Key, pool: Any, program: ChunkProgram) -> None:
        self.places, shapes = key
        w = plan.offer.w
        self.w = torch.empty_like(w)
        self.told = {name: torch.empty_like(tensor) for name, tensor in flatten(plan.offer.broadcast).items()}
        self.numbers = torch.zeros(3 + self.places, dtype=torch.int64, device=w.device)
        shares = plan.shares(clients[:1])
        self.shares = shares.new_zeros(self.places, shares.shape[1])
        self._feed(plan, clients)
        broadcast = unflatten(self.told)

        def compute() -> Sum:
            round, batch_key, model_key, coded = (*self.numbers[:3], self.numbers[3:])
            counted = coded >= 0  # a place that is only filled holds ~client
            who = torch.where(counted, coded, ~coded)
            chunk = Chunk(round.double(), batch_key, model_key, self.w, broadcast, who, counted, self.shares, {})
            found, _ = program.total(plan.fed.population, chunk, shapes, Drawn([], None))
            return found

        with torch.cuda.device(w.device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are compiled, chosen and loaded before the capture
                compute()
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
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
