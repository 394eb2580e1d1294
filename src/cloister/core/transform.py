"""What happens to an update on its way to the server, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cloister.core.context import Context
from cloister.core.local_rule import Settings
from cloister.core.objective import Layout
from cloister.core.sensitivity import Sensitivity
from cloister.core.state import State
from cloister.random.streams import Streams

Broadcast = Callable[[Streams, int, Context, State], State]
Clipped = Callable[[Tensor, Context], tuple[Tensor, Tensor, Tensor]]
"""(update, context) -> (norm of what is clipped, the norm that it is clipped to, by which factor), for measurements."""


@dataclass(frozen=True)
class Weighting:
    """That messages weigh differently, by how many samples their clients have.

    `denominator(size)` says in words what a sum is divided by that would be divided by `size`. `mean_weight` is what a
    client weighs on average, by declaration. `averages`: decoding gives the mean already, and not a sum.
    """

    denominator: Callable[[str], str]
    mean_weight: float = 1.0
    averages: bool = False


@dataclass(frozen=True)
class Transform:
    """What happens to an update on its way: the client's half, the server's half, and what leaves it.

    `encode(update [d], context) -> message [m]`; what the server gets is a sum of messages, and
    `decode(sum, context, state) -> (sum of updates, state)` undoes what encoding did to it.
    `sensitivity(known, layout)` is the guarantee: from what reaches the transform to the length, type and norm bounds
    of what leaves it.

    A transform may keep a state at the server (`init(w)`) and tell every client something before the round:
    `broadcast(streams, round, context, state)`, computed from public things and from what was released before.
    `after(message, context)` is what a client does once its noise share is in. `bits` is how many a number takes on the
    wire, where it is not what its type takes; `entries(m)` how many numbers are sent, where the others are zero and
    both sides know which. `weighting` is set where a message depends on how many samples its client has
    (`Context.samples`). `stays_finite` promises a finite message for every finite update; without that promise every
    message is looked at, and one that is not finite counts as zero. `clipped` measures what clipping does to an update,
    and `clip_error` is what it takes from it (clipped minus unclipped, in the update's own units and with its weight),
    where this is what the transform is for; nothing that is sent is computed by them. `bounds_distance`: what
    sensitivity says of norms also holds for the distance of two messages whose updates are that far apart, as one
    sample makes it in a sum over many. (Clipping does not promise that: two vectors of norm S may be 2 S apart.)
    """

    name: str
    settings: Settings
    encode: Callable[[Tensor, Context], Tensor]
    sensitivity: Callable[[Sensitivity, Layout], Sensitivity]
    decode: Callable[[Tensor, Context, State], tuple[Tensor, State]] | None = None
    init: Callable[[Tensor], State] | None = None
    broadcast: Broadcast | None = None
    after: Callable[[Tensor, Context], Tensor] | None = None
    bits: int | None = None
    entries: Callable[[int], int] | None = None
    parts: tuple[Transform, ...] = ()
    weighting: Weighting | None = None
    stays_finite: bool = False
    clipped: Clipped | None = None
    clip_error: Callable[[Tensor, Context], Tensor] | None = None
    bounds_distance: bool = False
