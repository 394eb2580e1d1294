"""Many clients as one batched computation, in chunks that fit a memory budget."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cloister.engine.compiled import Compile, compiled_parts, traced
from cloister.engine.parts import Drawn, Parts, places_for, same_parts, sum_of_chunk
from cloister.federation import Federation
from cloister.round import Sum
from cloister.work import Turn, ragged, shapes_of

PATIENCE = 12
"""How often a step is computed before it is traced, which takes some tenths of a second."""


@dataclass
class Vectorised:
    """`chunk` clients at a time; clients of unequal size, and too few for a layout, are padded and masked."""

    chunk: int
    how: Compile = traced
    patience: int | None = None
    name: str = "vectorised"
    _fed: Federation | None = field(default=None, repr=False)
    _parts: dict[bool, Parts] = field(default_factory=dict, repr=False)

    def total(self, fed: Federation, turn: Turn) -> Sum:
        if not same_parts(self._fed, fed):
            self._fed, self._parts = fed, {}
        moment, device = turn.moment(fed), turn.w.device
        patience = PATIENCE if self.patience is None else self.patience
        total, rejected = None, torch.zeros((), dtype=torch.int64, device=device)
        for clients in torch.split(turn.clients, self.chunk):
            shapes, places = shapes_of(fed, clients), places_for(fed, len(clients), self.chunk)
            if ragged(shapes) not in self._parts:
                self._parts[ragged(shapes)] = compiled_parts(fed, ragged(shapes), self.how, patience)
            there, counted, shares = self._laid_out(fed, turn, clients, places)
            drawn = Drawn(turn.lots(fed, clients, places), turn.noise(fed, clients, places))
            kept = {name: table[there] for name, table in turn.kept.items()}
            (part, bad), states = sum_of_chunk(
                fed, turn.w, turn.said, moment, shapes, there, shares, counted, self._parts[ragged(shapes)], kept, drawn
            )
            turn.remember(clients, states)
            total = part.clone() if total is None else total + part
            rejected += bad
        assert total is not None
        return total, rejected

    def _laid_out(self, fed: Federation, turn: Turn, clients: Tensor, places: int) -> tuple[Tensor, Tensor, Tensor]:
        """Clients, which of them count, and their shares of the noise: padded to one of a few lengths."""
        device = turn.w.device
        counted = torch.arange(places, device=device) < len(clients)
        there = torch.cat([clients, clients[-1:].expand(places - len(clients))]).to(device)
        shares = turn.shares(fed, clients)
        return there, counted, torch.cat([shares, shares.new_zeros(places - len(clients), shares.shape[1])])
