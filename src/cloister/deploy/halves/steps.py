"""What goes between the two halves of a federation, as plain values and tensors; nothing here knows of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from cloister.deploy.wire.canonical import JSON

UPDATE = "update"
"""What a round of training is called; other steps have the names of their queries."""
VALIDATION = "validation"
BEFORE_TRAINING = 0
"""The round in whose name queries before the first one are asked."""


@dataclass(frozen=True)
class Step:
    """One thing that is asked of all: an update of a round, or the answer to a query."""

    round: int
    what: str = UPDATE

    def __str__(self) -> str:
        return f"round {self.round}" if self.what == UPDATE else f"{self.what} (round {self.round})"


@dataclass(frozen=True)
class OfferBody:
    """What the server tells those whom it asks.

    `content` holds `noise_scale` where noise follows what was released before, and nothing else. `tensors` are the
    model ("w"), what was released before the first round ("released/...") and what transforms tell ("told/...").
    """

    step: Step
    asked: tuple[int, ...]
    content: Mapping[str, JSON] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplyBody:
    """What leaves a node: one tensor, "message"."""

    client: int
    content: Mapping[str, JSON] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
