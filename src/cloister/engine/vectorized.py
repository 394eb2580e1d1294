"""Many clients as one batched computation, in chunks that fit a memory budget."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cloister.client.batches import Shape, shapes_of
from cloister.engine.chunking import ChunkProgram, places_for, same_program
from cloister.engine.compilation import Compiled, Lower, traced
from cloister.round import Federation, RoundPlan, Sum

PATIENCE = 12
"""How often a step is computed before it is traced, which takes some tenths of a second."""


@dataclass
class Vectorized:
    """`chunk` clients at a time; clients of unequal size, and too few for a layout, are padded and masked.

    With `same_layout` all chunks of a run have the same shapes, where a new one would be captured or compiled anew.
    """

    chunk: int
    how: Lower = traced
    patience: int | None = None
    same_layout: bool = False
    name: str = "vectorized"
    _fed: Federation | None = field(default=None, repr=False)
    _programs: dict[bool, ChunkProgram] = field(default_factory=dict, repr=False)

    def total(self, plan: RoundPlan) -> Sum:
        fed = plan.fed
        if not same_program(self._fed, fed):
            self._fed, self._programs = fed, {}
        total, nonfinite = None, torch.zeros((), dtype=torch.int64, device=plan.offer.w.device)
        for clients in torch.split(plan.by_size, self.chunk):
            shapes = shapes_of(fed.population.counts[clients], fed.method.local)
            places = self.chunk if self.same_layout else places_for(fed, len(clients), self.chunk)
            chunk, drawn = plan.chunk(clients, places), plan.drawn(clients, places)
            (part, bad), states = self._program(fed, shapes).total(fed.population, chunk, shapes, drawn)
            plan.remember(clients, states)
            total = part.clone() if total is None else total + part
            nonfinite += bad
        assert total is not None
        return total, nonfinite

    def _program(self, fed: Federation, shapes: tuple[Shape, ...]) -> ChunkProgram:
        if self.same_layout:
            shapes = shapes_of(fed.population.counts, fed.method.local)
        ragged = any(shape.ragged for shape in shapes)
        if ragged not in self._programs:
            patience = PATIENCE if self.patience is None else self.patience
            self._programs[ragged] = ChunkProgram(
                fed, ragged, lambda step: Compiled(step, self.how, patience), shared_start=not self.same_layout
            )
        return self._programs[ragged]
