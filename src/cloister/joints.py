"""The joints of a federated round: what each part takes and gives. Frozen values made of pure functions.

    local rule -> transform -> mechanism -> (sum over the cohort) -> transform, backwards -> server optimiser

A method is a composition of these (`Method`); `round.py` is the only place where they meet. The parts live in
`local.py`, `transforms/`, `mechanisms/`, `servers.py` and `cohorts.py`, none of which imports another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from torch import Tensor

from cloister.errors import CloisterError, expect, expect_not_negative
from cloister.params import Layout
from cloister.privacy.events import Event, FixedSizeGaussian, PoissonGaussian
from cloister.streams import Streams

RELEASED = "the noisy sum of the clients' updates in every round, and so every model computed from these sums"

Settings = Mapping[str, Any]
"""Plain values that, with the name, say all about a joint: they are shown, hashed and certified."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client. Padding has mask False; `key` feeds what is random in the model."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    count: Tensor  # what a sum is divided by: how many samples are real, or 1 where none is; of a lot, what is expected
    key: Tensor
    live: Tensor  # whether the client takes this step; if not, nothing changes
    noise: Tensor  # [n] of a step that is private by itself: normal, scaled to its noise multiplier; otherwise [0]


Grad = Callable[..., Callable[..., Any]]
"""As torch.func.grad: `grad(function, has_aux=False)(argument)`, the argument a tensor or a tuple of tensors."""


@dataclass(frozen=True)
class Problem:
    """What is minimised: `loss(w, batch)` is the mean loss of the model with parameters w over real samples.

    `grad` differentiates a scalar function; engines choose the way that suits them. `outputs(w, inputs)` is what the
    model says of samples when it is used, not trained. `samples` knows the gradients of single samples.
    """

    layout: Layout
    loss: Callable[[Tensor, Batch], Tensor]
    grad: Grad
    outputs: Callable[[Tensor, Tensor], Tensor]
    samples: SampleGradients

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """The gradient [d] of the mean loss over a batch."""
        found: Tensor = self.grad(lambda v: self.loss(v, batch))(w)
        return found

    def clipped(
        self, w: Tensor, batch: Batch, clip: Tensor | float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum [d] of the gradients of a batch's single samples, each clipped as a whole, and their norms [b].

        Where `active` [d] is 0 a gradient counts as zero, in its norm as well. Padding, and a sample whose gradient is
        not finite, count as zero. Guarantee: a sample moves the sum by no more than `clip`.
        """
        return self.samples.clipped(self.grad, w, batch, clip, active)

    def clamped(self, w: Tensor, batch: Batch, limit: float, active: Tensor | None = None) -> Tensor:
        """The same sum with every coordinate of every gradient kept between -limit and limit instead."""
        return self.samples.clamped(self.grad, w, batch, limit, active)


class SampleGradients(Protocol):
    """How the gradients of single samples are had; both methods are pure and can be mapped over clients."""

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: float, active: Tensor | None) -> Tensor: ...

    def bytes_for(self, batch: int) -> int:
        """About how much memory a batch of one client takes beside what a plain gradient takes."""


Lots = Literal["poisson", "fixed"]


@dataclass(frozen=True)
class Batching:
    """How local data become mini-batches: shuffled passes, cut into pieces of at most `batch` samples.

    Either a number of `steps` (as many passes as they need) or of `epochs` (whole passes); or, with `again`, the last
    batch of the phase before, once more. With `lots` every step draws its samples anew, in secret, and a pass is as
    many steps as would see every sample once: "poisson" (each sample joins with probability 1/steps of a pass) or
    "fixed" (exactly `batch` of them, all subsets alike).
    """

    batch: int
    steps: int | None = None
    epochs: int | None = None
    again: bool = False
    lots: Lots | None = None

    def steps_for(self, samples: int) -> int:
        """How many steps a client with so many samples takes."""
        if not samples:
            return 0
        return (self.steps or 0) if self.epochs is None else self.epochs * -(-samples // self.batch)

    def expected(self, samples: int) -> float:
        """How many samples a lot has, or is expected to have: the constant that its sum is divided by."""
        if self.lots == "fixed":
            return float(min(self.batch, samples))
        return samples * self.rate(samples)

    def rate(self, samples: int) -> float:
        """The probability with which a sample joins a Poisson lot."""
        return 1 / max(-(-samples // self.batch), 1)

    def event(self, noise_multiplier: float, samples: int) -> Event:
        """What one step over a lot costs a client with so many samples."""
        if self.lots == "fixed":
            return FixedSizeGaussian(noise_multiplier, min(self.batch, samples), samples)
        return PoissonGaussian(noise_multiplier, self.rate(samples))


State = dict[str, Tensor]

Step = Callable[[Problem, State, Tensor, Batch, Tensor], State]


@dataclass(frozen=True)
class Phase:
    """Steps of local work that are alike: which batches they take and what each does with one.

    `step(problem, state, w, batch, round) -> state`, where w is the model at the start of the round. A step that is not
    the client's (of a batch without a real sample) changes nothing: the round sees to that. The round's number is a
    tensor without dimensions, so that what is captured or compiled once serves every round.
    """

    batching: Batching
    step: Step


@dataclass(frozen=True)
class PrivateSteps:
    """What makes each step of a local rule private by itself, for one sample of the client's.

    A step takes `draws(d)` normal numbers, already scaled to the noise multiplier of its gradient, z; `worth(z)` is the
    multiplier of the one Gaussian release that all its queries together amount to. `clip` bounds one sample's share.
    """

    clip: float | None
    draws: Callable[[int], int]
    worth: Callable[[float], float]


@dataclass(frozen=True)
class LocalRule:
    """What a client computes from its data, step by step, each a pure function that engines map and compile.

    `init(w)` is the state at the start of a round (vectors), `phases` say what happens to it, and
    `update(layout, state, w) -> [d]` is what the client would send. `own(w, key)` is what of that state is random, and
    no secret; what it `keeps` stays with the client from round to round. `private` is set where every step is private
    by itself, so that the update needs no further noise.
    """

    name: str
    settings: Settings
    phases: tuple[Phase, ...]
    init: Callable[[Tensor], State]
    update: Callable[[Layout, State, Tensor], Tensor]
    own: Callable[[Tensor, Tensor], State] | None = None
    keeps: tuple[str, ...] = ()
    private: PrivateSteps | None = None

    @property
    def batching(self) -> Batching:
        """How the first phase, which trains, takes its batches."""
        return self.phases[0].batching


@dataclass(frozen=True)
class Bound:
    """What is known of ANY client's contribution, whatever its data: its L2 norm is at most `l2`.

    Noise is scaled to `taken_for`, which is the same number except where a published mistake is replicated: then the
    paper takes the norm for less than it is, and what is priced is the noise as a multiple of `l2`.
    """

    l2: float = math.inf
    taken_for: float | None = None

    @property
    def unit(self) -> float:
        """What a noise multiplier multiplies."""
        return self.l2 if self.taken_for is None else self.taken_for


Samples = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Here:
    """What a transform knows beside the update: nothing that depends on another client's data.

    `expected` is the cohort's expected size, `w` the model at the start of the round, `said` what the server told
    everybody beside it, and `key` feeds what is random on this client and protects nobody (rounding).
    """

    problem: Problem
    public: Samples | None
    expected: float
    w: Tensor
    said: State
    key: Tensor


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
    `entries(m)` how many numbers are sent, where the others are zero and both sides know which.
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
    where noise is not Gaussian. `whole` noise is for messages of whole numbers, of norm `most_l2` at most.
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
        return {"place": self.place, "noise_multiplier": self.noise_multiplier, **self.settings_beside}


@dataclass(frozen=True)
class ServerOptimiser:
    """The mean update as a step of the model: `update(w, mean, state, here) -> (w, what changes of the state)`."""

    name: str
    settings: Settings
    init: Callable[[Tensor], State]
    update: Callable[[Tensor, Tensor, State, Here], tuple[Tensor, State]]


def _every_round(population: int) -> int:
    return 1


def _always(rounds: int, population: int) -> int:
    return rounds


@dataclass(frozen=True)
class Cohort:
    """Who takes part. `expected(N)` is the fixed denominator; `event(z, N)` prices noise z over such cohorts.

    `sample(streams, round, N)` returns sorted client numbers. Where a client takes part once in `separation(N)` rounds
    for certain, one event pays for that many rounds. `turns(rounds, N)` is how often a client takes part at most (or,
    of cohorts that are drawn, in all likelihood).
    """

    name: str
    settings: Settings
    sample: Callable[[Streams, int, int], Tensor]
    expected: Callable[[int], float]
    event: Callable[[float, int], Event]
    executed: str
    separation: Callable[[int], int] = _every_round
    turns: Callable[[int, int], int] = _always

    def releases(self, rounds: int, population: int) -> int:
        """How many events pay for so many rounds."""
        return math.ceil(rounds / self.separation(population))


@dataclass(frozen=True)
class Method:
    """A federated method: one choice for each joint but the cohort, and the unit that it protects.

    `fit(method, setting)` completes a method whose parts depend on the model, the cohort or public data, once its noise
    is known. `claims` is set where a paper's own choices are replicated: the certificate then shows what the paper
    would claim, by that arithmetic (`privacy/published.py`). `local_only`: nothing is proven of the sum, only of single
    messages. `notes` go into the certificate.
    `tempered(state)` is a factor on the noise multiplier of the next round, computed from what was released before.
    """

    name: str
    local: LocalRule
    transform: Transform
    mechanism: Mechanism
    server: ServerOptimiser
    unit: str = "client"
    released: str = RELEASED
    fit: Callable[[Method, Setting], Method] | None = None
    claims: str | None = None
    local_only: bool = False
    notes: tuple[str, ...] = ()
    trust: str | None = None  # who must be trusted, where it is not what the mechanism says
    neighbours: str | None = None  # what the price is about, where it is not what the cohort says
    tempered: Callable[[State], float] | None = None

    def init(self, w: Tensor) -> State:
        """What the server keeps from round to round, at the start."""
        return {**self.transform.init(w), **self.mechanism.init(w), **self.server.init(w)}


def describe(joint: LocalRule | Transform | Mechanism | ServerOptimiser | Cohort) -> dict[str, Any]:
    """A joint as plain values, for configuration hashes, certificates and people."""
    described: dict[str, Any] = {"name": joint.name, **joint.settings}
    if isinstance(joint, Transform) and joint.parts:
        described["parts"] = [describe(part) for part in joint.parts]
    return described
