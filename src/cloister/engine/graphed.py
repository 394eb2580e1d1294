"""The whole local training of a chunk of clients as one CUDA graph: captured once, replayed in every round.

A graph has fixed shapes and fixed places in memory. So the number of clients and their numbers of steps are rounded
up to one of a few (with a mask), and what changes from round to round (the model, the round's number and keys, who
takes part, noise shares) is copied into the graph's inputs. Batches are drawn, gathered and normalised inside.
Between the start of a round and its end the host only queues work.

Lots and noise that are secret are drawn on the host for every step. Where there are such, a step is captured instead of
a round, one for each width of a lot, and replayed step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cloister.batches import Shape, rounded_up
from cloister.engine.compiled import captured, compiled_parts, fused, traced
from cloister.engine.parts import Drawn, Parts, places_for, same_parts, sum_of_chunk
from cloister.engine.vectorised import Vectorised
from cloister.federation import Federation
from cloister.round import Sum
from cloister.work import Moment, Turn, ragged, shapes_of

Key = tuple[int, tuple[Shape, ...]]


@dataclass
class Graphed:
    """`chunk` clients at a time, at most, each chunk a replay of a graph; `compiled`, of fewer and larger kernels."""

    chunk: int
    compiled: bool = False
    _fed: Federation | None = field(default=None, repr=False)
    _parts: dict[bool, Parts] = field(default_factory=dict, repr=False)
    _graphs: dict[Key, _Graph] = field(default_factory=dict, repr=False)
    _steps: Vectorised | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return "compiled" if self.compiled else "graphed"

    def total(self, fed: Federation, turn: Turn) -> Sum:
        if fed.method.local.batching.lots or fed.method.local.keeps:
            return self._step_by_step().total(fed, turn)
        if self._fed is not fed:  # graphs hold on to the data and the model they were captured with
            self._parts = self._parts if same_parts(self._fed, fed) else {}
            self._fed, self._graphs = fed, {}
        total, rejected = None, torch.zeros((), dtype=torch.int64, device=turn.w.device)
        for clients in torch.split(turn.clients, self.chunk):
            part, bad = self._graph_for(fed, turn, clients).replay(fed, turn, clients)
            total = part.clone() if total is None else total.add_(part)
            rejected += bad
        assert total is not None
        return total, rejected

    def _step_by_step(self) -> Vectorised:
        if self._steps is None:
            self._steps = Vectorised(self.chunk, captured(fused if self.compiled else traced), 0)
        return self._steps

    def _graph_for(self, fed: Federation, turn: Turn, clients: Tensor) -> _Graph:
        shapes = shapes_of(fed, clients, rounded_up)
        places = places_for(fed, len(clients), self.chunk)
        key = (places, shapes)
        if key not in self._graphs:
            pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
            if ragged(shapes) not in self._parts:
                self._parts[ragged(shapes)] = (compiled_parts if self.compiled else Parts.of)(fed, ragged(shapes))
            self._graphs[key] = _Graph(fed, turn, clients, places, shapes, pool, self._parts[ragged(shapes)])
        return self._graphs[key]


class _Graph:
    """A captured chunk with its inputs and outputs."""

    def __init__(
        self,
        fed: Federation,
        turn: Turn,
        clients: Tensor,
        places: int,
        shapes: tuple[Shape, ...],
        pool: Any,
        parts: Parts,
    ) -> None:
        self.places = places
        self.w = torch.empty_like(turn.w)
        self.said = {name: torch.empty_like(tensor) for name, tensor in turn.said.items()}
        self.numbers = torch.zeros(3 + places, dtype=torch.int64, device=turn.w.device)
        shares = turn.shares(fed, clients[:1])
        self.shares = shares.new_zeros(places, shares.shape[1])
        self._feed(fed, turn, clients)

        def compute() -> Sum:
            moment = Moment(self.numbers[0].double(), self.numbers[1], self.numbers[2])
            coded = self.numbers[3:]  # a place that is only filled holds ~client
            counted = coded >= 0
            who = torch.where(counted, coded, ~coded)
            nothing = Drawn([], None)
            found, _ = sum_of_chunk(
                fed, self.w, self.said, moment, shapes, who, self.shares, counted, parts, {}, nothing
            )
            return found

        with torch.cuda.device(turn.w.device):
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):  # kernels are compiled, chosen and loaded before the capture
                compute()
            torch.cuda.current_stream().wait_stream(aside)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, pool=pool):
                self.part, self.rejected = compute()

    def replay(self, fed: Federation, turn: Turn, clients: Tensor) -> Sum:
        """The sum over these clients; it stays valid until the next replay of any graph."""
        self._feed(fed, turn, clients)
        self.graph.replay()
        return self.part, self.rejected

    def _feed(self, fed: Federation, turn: Turn, clients: Tensor) -> None:
        self.w.copy_(turn.w)
        for name, tensor in turn.said.items():
            self.said[name].copy_(tensor)
        filler = ~clients[-1:].expand(self.places - len(clients))
        numbers = torch.cat([torch.tensor([turn.round, *turn.keys(fed)]), clients, filler]).pin_memory()
        self.numbers.copy_(numbers, non_blocking=True)
        if self.shares.shape[1]:
            self.shares[: len(clients)] = turn.shares(fed, clients)
