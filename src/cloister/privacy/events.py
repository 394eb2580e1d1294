"""What was released, in words that can be written down and priced later.

An event says how much noise covered one unit's contribution and how the cohort was drawn. It says nothing
about epsilon: that is the accountant's business (`pricing.py`, `accountant.py`), and may be computed again, by
anybody, from the ledger alone.

`noise_multiplier` is everywhere the standard deviation of the noise divided by the bound on ONE unit's
contribution to the released sum. Where adjacency means that a unit is replaced, the sum can move by twice
that bound; the accountant knows, the event does not change. Where a replaced unit is known to move the sum by less,
`noise_multiplier` is the noise divided by half of that distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar

from cloister.errors import (
    LEAST,
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_not_negative,
    expect_positive,
    expect_probability,
)


class Adjacency(StrEnum):
    """Which pairs of populations must be hard to tell apart; named as dp-accounting names them."""

    ADD_OR_REMOVE_ONE = "add or remove one"
    REPLACE_ONE = "replace one"


@dataclass(frozen=True)
class Event:
    """What was released to a unit. Every class below is a kind of event, with a name of its own in files."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        Event.kinds[kind] = cls


@dataclass(frozen=True)
class Gaussian(Event, kind="gaussian"):
    """A sum over every unit, plus Gaussian noise. Multiplier zero means no protection at all."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        expect_not_negative("noise multiplier", self.noise_multiplier, "give the noise's scale, or calibrate it")


@dataclass(frozen=True)
class PoissonGaussian(Event, kind="poisson_gaussian"):
    """The same over a secret cohort that each unit joins independently with probability `sampling_rate`."""

    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)
        expect_probability("sampling_rate", self.sampling_rate, "the probability with which a unit joins a round")
        expect(self.sampling_rate >= LEAST, f"sampling_rate >= {LEAST:g}", self.sampling_rate, "nobody would ever join")


@dataclass(frozen=True)
class FixedSizeGaussian(Event, kind="fixed_size_gaussian"):
    """The same over a secret cohort of exactly `size` units out of `population`, all subsets equally likely."""

    noise_multiplier: float
    size: int
    population: int

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)
        expect_count("cohort size", self.size, "a fixed cohort has at least one member")
        expect_count("population", self.population, "it cannot be smaller than the cohort", least=self.size)


@dataclass(frozen=True)
class ReleasedSizeGaussian(Event, kind="released_size_gaussian"):
    """The same over a cohort that each of `population` units joins with probability `sampling_rate`, whose size is
    released with the sum, because the sum is divided by it.

    Who joins is secret, how many is not: given that m did, all subsets of m units are equally likely. This is a cohort
    of fixed size, m of `population`, and no Poisson one; m itself is drawn from no unit's data.
    """

    noise_multiplier: float
    sampling_rate: float
    population: int

    def __post_init__(self) -> None:
        PoissonGaussian(self.noise_multiplier, self.sampling_rate)
        expect_count("population", self.population, "the number of units that may join")


@dataclass(frozen=True)
class DiscreteGaussianSum(Event, kind="discrete_gaussian_sum"):
    """A modular sum of integer vectors under `shares` exact discrete Gaussians, each with parameter `scale`.

    Scale and `l2`, the bound on one unit's integer vector (after rounding), are in units of the grid. `dimension`
    counts every coordinate that is released, those of the padding included. Units join with probability
    `sampling_rate`, one without data still does its part of the noise. With a rate below 1 the number of shares must
    not depend on who joined: were it larger whenever one more unit takes part, the spread of the noise would tell
    (`discrete_gaussian.py`).
    """

    scale: float
    shares: int
    l2: float
    dimension: int
    sampling_rate: float = 1.0

    def __post_init__(self) -> None:
        expect_not_negative("scale", self.scale, "give the standard deviation of one share, in units of the grid")
        expect_count("shares", self.shares, "somebody has to add the noise")
        expect_positive("l2", self.l2, "give the bound on one client's integer vector, in units of the grid")
        expect_count("dimension", self.dimension, "give the number of coordinates, padding included")
        expect_probability("sampling_rate", self.sampling_rate, "the probability with which a unit joins a round")
        expect(self.sampling_rate >= LEAST, f"sampling_rate >= {LEAST:g}", self.sampling_rate, "nobody would ever join")

    @property
    def noise_multiplier(self) -> float:
        """That of the continuous Gaussian which this sum resembles."""
        return math.sqrt(self.shares) * self.scale / self.l2


@dataclass(frozen=True)
class BinomialSum(Event, kind="binomial_sum"):
    """Whole numbers of `levels` values in each of `dimension` coordinates (padding included), under tossed coins.

    A real vector is cut off at +-`range`, rounded at random to one of `levels` equally spaced points in every
    coordinate, and covered by Bin(`trials`, 1/2) there. It is made of a secret batch, a share `sampling_rate` of the
    units, drawn without replacement; replacing one moves it by twice `clip_norm` at most, before it is cut off.
    `step_delta` is a chance that is set aside, once for roundings that are too far apart and once for noise that is too
    far out: free to choose, and fixed before anything is released (`binomial.py`).
    """

    levels: int
    trials: int
    clip_norm: float
    range: float
    dimension: int
    sampling_rate: float
    step_delta: float

    def __post_init__(self) -> None:
        expect_count("levels", self.levels, "two points are the fewest to round to", least=2)
        expect_count("trials", self.trials, "give the number of coin tosses in a coordinate's noise", most=2**62)
        expect_positive("clip_norm", self.clip_norm, "give the bound on the norm of the vector before rounding")
        expect_positive("range", self.range, "give the largest number that is not cut off")
        expect_count("dimension", self.dimension, "give the number of coordinates, padding included")
        expect_probability("sampling_rate", self.sampling_rate, "the share of a unit's fellows that make a batch")
        expect_delta(self.step_delta)
        expect(self.step_delta < 0.5, "step_delta < 1/2", self.step_delta, "it counts twice, so choose a small one")

    @property
    def noise_multiplier(self) -> float:
        """That of the Gaussian which this noise resembles, before rounding."""
        return math.sqrt(self.trials) * self.range / (self.clip_norm * (self.levels - 1))


@dataclass(frozen=True)
class BestOfTrials(Event, kind="best_of_trials"):
    """The best of a random number of trials, `mean` on average: all that is released of any of them.

    `shape` is that of the truncated negative binomial distribution from which their number is drawn, or None for the
    Poisson distribution. Every trial, whatever its settings, has at most the Renyi `divergence` at `order`, and
    `divergence_hat` at `order_hat` (`selection.py`). `adjacency` is the one under which these were computed.
    """

    mean: float
    shape: float | None
    order: float
    divergence: float
    order_hat: float
    divergence_hat: float
    adjacency: str

    def __post_init__(self) -> None:
        for name in ("order", "order_hat"):
            order = getattr(self, name)
            expect(isinstance(order, (int, float)) and order > 1, f"{name} > 1", order, "a Renyi order is above one")
        for name in ("divergence", "divergence_hat"):
            expect_not_negative(name, getattr(self, name), "give the most that any trial has")
        known = [one.value for one in Adjacency]
        expect(self.adjacency in known, f"adjacency to be {' or '.join(known)}", self.adjacency, "choose one")


@dataclass(frozen=True)
class NoOp(Event, kind="no_op"):
    """A release to units that another event has paid for: in a cycle, each takes part in one round alone."""


@dataclass(frozen=True)
class NonPrivate(Event, kind="non_private"):
    """A release without any protection: epsilon is infinite."""


@dataclass(frozen=True)
class Unsupported(Event, kind="unsupported"):
    """A release whose privacy nobody has proven; a ledger refuses it."""

    reason: str


def to_json(event: Event) -> dict[str, Any]:
    """The event as a flat JSON object. Events that are equal are written alike: 1 as 1.0 where a real number is meant.

    >>> to_json(PoissonGaussian(1, 0.1))
    {'kind': 'poisson_gaussian', 'noise_multiplier': 1.0, 'sampling_rate': 0.1}
    """
    found: dict[str, Any] = {"kind": event.kind}
    for part in fields(event):
        value = getattr(event, part.name)
        found[part.name] = float(value) if part.type == "float" else value
    return found


def from_json(content: dict[str, Any]) -> Event:
    """The inverse of `to_json`."""
    rest = dict(content)
    kind = Event.kinds.get(rest.pop("kind", None))
    if kind is None:
        raise CloisterError(
            f"Expected an event of kind {', '.join(Event.kinds)}, found {content!r}: "
            "the ledger was written by something else or by a newer version."
        )
    return kind(**rest)
