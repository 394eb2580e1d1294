"""Sums over the updates of a round, from which directions, bias and sparsity follow: exact, and so NOT PRIVATE.

A round may have thousands of clients and a model millions of parameters, so that updates are looked at one after the
other and a few vectors are kept of all of them. The mean cosine of all pairs needs no pair:

    sum over i != j of <u_i, u_j> / (|u_i| |u_j|) = |sum of u_i / |u_i||^2 - n

and in the same way the mean overlap of the coordinates that clients keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

HELD_BYTES = 256 * 2**20
"""Updates are kept up to so many bytes of all of them; beyond that, what needs them twice computes them twice."""


@dataclass(frozen=True)
class Sent:
    """One client's update and what is made of it, before any noise. Nothing of it is private."""

    update: Tensor
    """[d] as the local rule leaves it."""
    weight: float
    """What it counts for; 1 where all count the same."""
    message: Tensor
    """[m] as it would be sent without noise."""
    clip_error: Tensor | None
    """Clipped minus unclipped, with its weight; None where nothing is clipped."""


@dataclass
class UnitSum:
    """The sum of directions: of some vectors, each scaled to norm 1. One that is zero has none."""

    total: Tensor | None = None
    count: int = 0

    def add(self, vector: Tensor, norm: Tensor) -> None:
        if float(norm) > 0:
            unit = vector.double() / norm
            self.total = unit if self.total is None else self.total.add_(unit)
            self.count += 1

    @property
    def mean_pairwise(self) -> float | None:
        """The mean cosine over all pairs of different vectors; None of fewer than two."""
        if self.total is None or self.count < 2:
            return None
        return (float(self.total @ self.total) - self.count) / (self.count * (self.count - 1))


@dataclass
class UpdateSums:
    """What is added up over the clients of a round. `wants` are the measurements that it is for."""

    wants: frozenset[str]
    clients: int = 0
    weights: float = 0.0
    updates: Tensor | None = None
    """Weighted."""
    messages: Tensor | None = None
    clip_errors: Tensor | None = None
    directions: UnitSum = field(default_factory=UnitSum)
    supports: UnitSum = field(default_factory=UnitSum)
    """Of vectors that are 1 where a message is not zero: their cosine is how much two messages overlap."""
    kept_by: Tensor | None = None
    """By how many clients a coordinate is kept."""
    zeros: dict[int, tuple[float, float]] = field(default_factory=dict)
    """By client: the share of the model's coordinates that are zero in its update, and in its message."""
    held: list[tuple[int, Tensor]] | None = field(default_factory=list)
    """All updates, as long as they fit."""

    def add(self, client: int, sent: Sent) -> None:
        """One more client; what is passed is not kept, unless there is room for it."""
        update = sent.update.double()
        self.clients += 1
        self.weights += sent.weight
        self.updates = _plus(self.updates, update * sent.weight)
        if "cosine" in self.wants:
            self.directions.add(update, torch.linalg.vector_norm(update))
            self._hold(client, sent.update)
        if "signal" in self.wants:
            self.messages = _plus(self.messages, sent.message)  # whole numbers stay whole
            if sent.clip_error is not None:
                self.clip_errors = _plus(self.clip_errors, sent.clip_error.double())
        if "sparsity" in self.wants:
            there = sent.message != 0
            count = there.sum()
            self.supports.add(there, count.double().sqrt())
            self.kept_by = _plus(self.kept_by, there.long())
            size = update.shape[0]
            sent_share = min(int(count) / size, 1.0)  # a message may be longer than the model
            self.zeros[client] = (1 - int((update != 0).sum()) / size, 1 - sent_share)

    def _hold(self, client: int, update: Tensor) -> None:
        if self.held is not None:
            self.held.append((client, update.clone()))
            if update.nbytes * len(self.held) > HELD_BYTES:
                self.held = None

    def cosines(self, again: Callable[[Callable[[int, Sent], None]], None]) -> dict[int, float]:
        """By client, the cosine of its update with the (weighted) mean. `again` shows all updates once more."""
        if self.updates is None:
            return {}
        mean, found = self.updates, {}
        length = torch.linalg.vector_norm(mean)

        def look(client: int, update: Tensor) -> None:
            own = update.double()
            scale = float(torch.linalg.vector_norm(own) * length)
            if scale > 0:
                found[client] = float(own @ mean) / scale

        if self.held is None:
            again(lambda client, sent: look(client, sent.update))
        else:
            for client, update in self.held:
                look(client, update)
        return found


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more.clone() if total is None else total.add_(more)
