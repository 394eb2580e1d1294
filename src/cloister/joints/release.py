"""What happens to an update on its way to the server: the bound on it, transforms, and noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor

from cloister.errors import CloisterError, expect, expect_noise, expect_one_of
from cloister.joints.learning import Problem, Settings, State
from cloister.params import Layout
from cloister.privacy.events import Event
from cloister.streams import Streams


@dataclass(frozen=True)
class Bound:
    """What is known of ANY client's contribution, whatever its data: its L2 norm is at most `l2`.

    Noise is scaled to `taken_for`, which is the same number except where a published mistake is replicated: then the
    paper takes the norm for less than it is, and what is priced is the noise as a multiple of `l2`.

    `replace_l2` is how far a message can be from any other that the same client might have sent, where that is less
    than twice `l2`. `size` is how many numbers reach a transform, where they are not as many as the model has.
    """

    l2: float = math.inf
    taken_for: float | None = None
    replace_l2: float | None = None
    size: int | None = None

    @property
    def unit(self) -> float:
        """What a noise multiplier multiplies."""
        return self.l2 if self.taken_for is None else self.taken_for

    @property
    def replaced(self) -> float:
        """By how much replacing a client's data can move its message."""
        return 2 * self.l2 if self.replace_l2 is None else min(self.replace_l2, 2 * self.l2)


Samples = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Here:
    """What a transform knows beside the update: nothing that depends on another client's data.

    `expected` is the cohort's expected size, `w` the model at the start of the round, `said` what the server told
    everybody beside it, and `key` feeds what is random on this client and protects nobody (rounding). `size` is how
    many numbers the transform is given: as many as the model has, or what the transforms before it leave.
    """

    problem: Problem
    public: Samples | None
    expected: float
    w: Tensor
    said: State
    key: Tensor
    size: int


@dataclass(frozen=True)
class Setting:
    """What the parts of a method may depend on: the model, the cohort and public data, never a client's.

    `norms()` are those of the gradients of samples made of noise, at the model that the run starts from.
    """

    layout: Layout
    expected: float
    separation: int
    public: Samples | None
    norms: Callable[[], Tensor] | None = None


Announce = Callable[[Streams, int, Here, State], State]


def _nothing(*_: Any) -> State:
    return {}


def _as_long(size: int) -> int:
    return size


def _as_it_is(total: Tensor, here: Here, state: State) -> tuple[Tensor, State]:
    return total, {}


@dataclass(frozen=True)
class Transform:
    """What happens to an update on its way: the client's half, the server's half, and the bound it leaves.

    `encode(update [d], here) -> message [m]`; what the server gets is a sum of messages, and `decode(sum, here, state)
    -> (sum of updates, what changes of the state)`. A transform may keep a state at the server (`init(w)`) and tell
    every client something before the round: `announce(streams, round, here, state)`, computed from public things and
    from what was released before. `bound(bound, layout)` is the guarantee. `after(message, here)` is what a client
    does once its noise share is in. `bits` is how many a number takes on the wire, where it is not what its type takes;
    `entries(m)` how many numbers are sent, where the others are zero and both sides know which. `length(size)` is how
    many numbers a message of so many has; None where only encoding tells, and then no other transform may follow.
    """

    name: str
    settings: Settings
    encode: Callable[[Tensor, Here], Tensor]
    bound: Callable[[Bound, Layout], Bound]
    decode: Callable[[Tensor, Here, State], tuple[Tensor, State]] = _as_it_is
    init: Callable[[Tensor], State] = _nothing
    announce: Announce = _nothing
    after: Callable[[Tensor, Here], Tensor] | None = None
    bits: int | None = None
    entries: Callable[[int], int] | None = None
    parts: tuple[Transform, ...] = ()
    length: Callable[[int], int] | None = _as_long


Place = Literal["central", "distributed", "local", "nowhere"]


Draw = Callable[[float, Streams, Tensor, Bound, int, int, int], Tensor]
Correlate = Callable[[Tensor, int, State], tuple[Tensor, State]]


def _priced_as_drawn(event: Event) -> Event:
    return event


def _only_for_nobody(cohort: int) -> int:
    return 0 if cohort else 1


@dataclass(frozen=True)
class Mechanism:
    """The noise, derived FROM the bound it is given, and what it is worth.

    `noise_multiplier` is the one number that is both priced and used; None means that it is to be calibrated.
    `draw(multiplier, streams, like, bound, round, client, of)` is one part of the noise: with place "central"
    the one and only (of = 1, drawn by the server), with "distributed" one client's of the cohort's `of` parts, to which
    the server adds `missing(of)` more; at most `most` clients add one. With "local" noise is in the steps of the local
    rule, and every message is private by itself.

    Central noise may be correlated over rounds: `correlate(drawn, round, state) -> (noise, state)`, which is worth what
    independent noise is worth to whoever takes part once in `separation` rounds at most. `price(event)` is the event
    where noise is not Gaussian. `whole` noise is for messages of whole numbers, of norm `most_l2` at most, and of as
    many numbers as were priced (`dimension`).
    """

    name: str
    place: Place
    noise_multiplier: float | None
    draw: Draw
    trust: str
    settings_beside: Settings = field(default_factory=dict)
    whole: bool = False
    most_l2: float = math.inf
    most: int | None = None
    missing: Callable[[int], int] = _only_for_nobody
    price: Callable[[Event], Event] = _priced_as_drawn
    init: Callable[[Tensor], State] = _nothing
    correlate: Correlate | None = None
    separation: int = 1
    dimension: int | None = None
    for_samples: bool = False  # whether `price` is about one sample of a client, over its lots

    def __post_init__(self) -> None:
        expect_one_of("place", self.place, get_args(Place))
        if self.noise_multiplier is not None:
            expect_noise("noise_multiplier", self.noise_multiplier)
        silent = self.place != "nowhere" or self.noise_multiplier == 0
        expect(silent, "no noise where place is nowhere", self.noise_multiplier, "say who adds the noise")

    def share(self, streams: Streams, like: Tensor, bound: Bound, round: int, client: int, of: int) -> Tensor:
        """One part of the noise, at the multiplier that is priced."""
        if self.noise_multiplier is None:
            raise CloisterError("Expected a calibrated mechanism, found none: give a noise_multiplier or an epsilon.")
        if self.dimension is not None:
            self.expect_priced(like.numel())
        return self.draw(self.noise_multiplier, streams, like, bound, round, client, of)

    def expect_priced(self, numbers: int | None) -> None:
        """Refuse messages of more numbers than the noise was priced for, or of nobody knows how many."""
        if self.dimension is not None and (numbers is None or numbers > self.dimension):
            raise CloisterError(
                f"Expected messages of at most {self.dimension} numbers, for which {self.name} noise is priced, found "
                f"{'no telling how many' if numbers is None else numbers}: give the length of a message, padding "
                "included, as dimension."
            )

    @property
    def settings(self) -> Settings:
        return {"place": self.place, "noise_multiplier": self.noise_multiplier, **self.settings_beside}
