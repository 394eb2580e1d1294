"""What goes between the two halves of a round: the server's offer, and a node's reply."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from cloister.core import State, Tensors


@dataclass(frozen=True)
class Offer:
    """What the server asks for in a round, and all that it tells those who are asked."""

    round: int
    clients: Tensor
    """Who is asked: client numbers in rising order, on the host."""
    w: Tensor
    broadcast: State = field(default_factory=dict)
    """What the transform told everybody beside the model."""
    noise_scale: float = 1.0
    """A factor on the noise multipliers of private steps, which follows from what was released before."""
    closed: list[bool] = field(default_factory=list, compare=False, repr=False)
    """Whether this process has closed the round: it does so once."""


@dataclass(frozen=True)
class Reply:
    """What leaves a node: the sum of the messages of its clients that took part."""

    clients: Tensor
    """Whose they are, in rising order, on the host."""
    message: Tensor
    samples: float = 0.0
    """How many samples their batches were expected to have, by rates and sizes that were declared; where messages are
    sums over batches, and a round's sum is divided by this."""


@dataclass(frozen=True)
class Answer:
    """A reply, and what stays at the node."""

    reply: Reply
    client_state: Tensors
    nonfinite_updates: Tensor
    """How many updates were not finite; still on its way where a device computes it."""
    refused: int = 0
    """How many of its clients had no budget left."""
