"""The joints of a federated round: what each part takes and gives. Frozen values made of pure functions.

    local rule -> transform -> mechanism -> (sum over the cohort) -> transform, backwards -> server optimiser

A method is a composition of these (`Method`); `round.py` is the only place where they meet. The parts live in
`local.py`, `transforms.py`, `mechanisms.py`, `servers.py` and `cohorts.py`, none of which imports another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from cloister.errors import CloisterError, expect, expect_not_negative
from cloister.params import Layout
from cloister.privacy.events import Event
from cloister.streams import Streams

Settings = Mapping[str, Any]
"""Plain values that, with the name, say all about a joint: they are shown, hashed and certified."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client. Padding has mask False; `key` feeds what is random in the model."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    count: Tensor  # how many samples are real, or 1 where none is: what a mean divides by
    key: Tensor


Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """What is minimised: `loss(w, batch)` is the mean loss of the model with parameters w over real samples.

    `grad` differentiates a scalar function; engines choose the way that suits them.
    """

    layout: Layout
    loss: Callable[[Tensor, Batch], Tensor]
    grad: Callable[[Function], Function]

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """The gradient [d] of the mean loss over a batch."""
        return self.grad(lambda v: self.loss(v, batch))(w)


@dataclass(frozen=True)
class Batching:
    """How local data become mini-batches: shuffled passes, cut into pieces of at most `batch` samples.

    Either a number of `steps` (as many passes as they need) or of `epochs` (whole passes).
    """

    batch: int
    steps: int | None = None
    epochs: int | None = None


State = dict[str, Tensor]


@dataclass(frozen=True)
class LocalRule:
    """What a client computes from its data, step by step, each a pure function that engines map and compile.

    `init(w)` is the state at the start of a round, `step(problem, state, w, batch, round) -> state` one mini-batch,
    and `update(state, w) -> [d]` what the client would send. w is the model at the start of the round throughout. A
    step without a real sample changes nothing: the round sees to that. The round's number is a tensor without
    dimensions, so that what is captured or compiled once serves every round.
    """

    name: str
    settings: Settings
    batching: Batching
    init: Callable[[Tensor], State]
    step: Callable[[Problem, State, Tensor, Batch, Tensor], State]
    update: Callable[[State, Tensor], Tensor]


@dataclass(frozen=True)
class Bound:
    """What is known of ANY client's contribution, whatever its data: its L2 norm is at most `l2`."""

    l2: float = math.inf


@dataclass(frozen=True)
class Transform:
    """What happens to an update on its way: the client's half, the server's half, and the bound it leaves."""

    name: str
    settings: Settings
    encode: Callable[[Tensor], Tensor]
    decode: Callable[[Tensor], Tensor]
    bound: Callable[[Bound], Bound]
    parts: tuple[Transform, ...] = ()


Place = Literal["central", "distributed", "nowhere"]


@dataclass(frozen=True)
class Mechanism:
    """The noise, derived FROM the bound it is given, and what it is worth.

    `noise_multiplier` is the one number that is both priced and used; None means that it is to be calibrated.
    `draw(multiplier, streams, like, bound, round, client, of)` is one part of the noise: with place "central"
    the one and only (of = 1, drawn by the server), with "distributed" one client's of the cohort's `of` parts.
    """

    name: str
    place: Place
    noise_multiplier: float | None
    draw: Callable[[float, Streams, Tensor, Bound, int, int, int], Tensor]
    trust: str

    def __post_init__(self) -> None:
        places = get_args(Place)
        expect(self.place in places, f"place to be one of {', '.join(places)}", self.place, "choose one")
        if self.noise_multiplier is not None:
            expect_not_negative("noise_multiplier", self.noise_multiplier, "give the noise's scale, or leave it out")
        silent = self.place != "nowhere" or self.noise_multiplier == 0
        expect(silent, "no noise where place is nowhere", self.noise_multiplier, "say who adds the noise")

    def share(self, streams: Streams, like: Tensor, bound: Bound, round: int, client: int, of: int) -> Tensor:
        """One part of the noise, at the multiplier that is priced."""
        if self.noise_multiplier is None:
            raise CloisterError("Expected a calibrated mechanism, found none: give a noise_multiplier or an epsilon.")
        return self.draw(self.noise_multiplier, streams, like, bound, round, client, of)

    @property
    def settings(self) -> Settings:
        return {"place": self.place, "noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True)
class ServerOptimiser:
    """The mean update as a step of the global model: `update(w, mean, state) -> (w, state)`."""

    name: str
    settings: Settings
    init: Callable[[Tensor], State]
    update: Callable[[Tensor, Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True)
class Cohort:
    """Who takes part. `expected(N)` is the fixed denominator; `event(z, N)` prices noise z over such cohorts.

    `sample(streams, round, N)` returns sorted client numbers.
    """

    name: str
    settings: Settings
    sample: Callable[[Streams, int, int], Tensor]
    expected: Callable[[int], float]
    event: Callable[[float, int], Event]
    executed: str


@dataclass(frozen=True)
class Method:
    """A federated method: one choice for each joint but the cohort, and the unit that it protects."""

    name: str
    local: LocalRule
    transform: Transform
    mechanism: Mechanism
    server: ServerOptimiser
    unit: str = "client"


def describe(joint: LocalRule | Transform | Mechanism | ServerOptimiser | Cohort) -> dict[str, Any]:
    """A joint as plain values, for configuration hashes, certificates and people."""
    described: dict[str, Any] = {"name": joint.name, **joint.settings}
    if isinstance(joint, Transform) and joint.parts:
        described["parts"] = [describe(part) for part in joint.parts]
    return described
