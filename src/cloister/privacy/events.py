"""What was released, in words that can be written down and priced later.

An event says how much noise covered one unit's contribution and how the cohort was drawn. It says nothing
about epsilon: that is the accountant's business (`accounting.py`), and may be computed again, by anybody,
from the ledger alone.

`noise_multiplier` is everywhere the standard deviation of the noise divided by the bound on ONE unit's
contribution to the released sum. Where the neighbouring relation replaces a unit, the sum can move by twice
that bound; the accountant knows, the event does not change. Where a replaced unit is known to move the sum by less,
`noise_multiplier` is the noise divided by half of that distance.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from cloister.errors import (
    LEAST,
    CannotPrice,
    CloisterError,
    expect,
    expect_count,
    expect_delta,
    expect_not_negative,
    expect_positive,
    expect_probability,
)


class Relation(StrEnum):
    """Which pairs of populations must be hard to tell apart."""

    ADD_REMOVE = "add or remove one"
    REPLACE = "replace one"


@dataclass(frozen=True)
class Gaussian:
    """A sum over every unit, plus Gaussian noise. Multiplier zero means no protection at all."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        expect_not_negative("noise multiplier", self.noise_multiplier, "give the noise's scale, or calibrate it")


@dataclass(frozen=True)
class PoissonGaussian:
    """The same over a secret cohort that each unit joins independently with probability `rate`."""

    noise_multiplier: float
    rate: float

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)
        expect_probability("rate", self.rate, "the probability with which a unit joins a round")
        expect(self.rate >= LEAST, f"rate >= {LEAST:g}", self.rate, "nobody would ever join")


@dataclass(frozen=True)
class FixedSizeGaussian:
    """The same over a secret cohort of exactly `size` units out of `population`, all subsets equally likely."""

    noise_multiplier: float
    size: int
    population: int

    def __post_init__(self) -> None:
        Gaussian(self.noise_multiplier)
        expect_count("cohort size", self.size, "a fixed cohort has at least one member")
        expect_count("population", self.population, "it cannot be smaller than the cohort", least=self.size)


@dataclass(frozen=True)
class DiscreteGaussianSum:
    """A modular sum of integer vectors under `shares` exact discrete Gaussians, each with parameter `scale`.

    Scale and `l2`, the bound on one unit's integer vector (after rounding), are in units of the grid. `dimension`
    counts every coordinate that is released, those of the padding included. Units join with probability `rate`, one
    without data still does its part of the noise. With a rate below 1 the number of shares must not depend on who
    joined: were it larger whenever one more unit takes part, the spread of the noise would tell (`discrete.py`).
    """

    scale: float
    shares: int
    l2: float
    dimension: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        expect_not_negative("scale", self.scale, "give the standard deviation of one share, in units of the grid")
        expect_count("shares", self.shares, "somebody has to add the noise")
        expect_positive("l2", self.l2, "give the bound on one client's integer vector, in units of the grid")
        expect_count("dimension", self.dimension, "give the number of coordinates, padding included")
        expect_probability("rate", self.rate, "the probability with which a unit joins a round")
        expect(self.rate >= LEAST, f"rate >= {LEAST:g}", self.rate, "nobody would ever join")

    @property
    def noise_multiplier(self) -> float:
        """That of the continuous Gaussian which this sum resembles."""
        return math.sqrt(self.shares) * self.scale / self.l2


@dataclass(frozen=True)
class BinomialSum:
    """Whole numbers of `levels` values in each of `dimension` coordinates (padding included), under tossed coins.

    A real vector is cut off at +-`range`, rounded at random to one of `levels` equally spaced points in every
    coordinate, and covered by Bin(`trials`, 1/2) there. It is made of a secret lot, a share `rate` of the units, drawn
    without replacement; replacing one moves it by twice `clip` at most, before it is cut off. `step_delta` is a chance
    that is set aside, once for roundings that are too far apart and once for noise that is too far out: free to choose,
    and fixed before anything is released (`binomial.py`).
    """

    levels: int
    trials: int
    clip: float
    range: float
    dimension: int
    rate: float
    step_delta: float

    def __post_init__(self) -> None:
        expect_count("levels", self.levels, "two points are the fewest to round to", least=2)
        expect_count("trials", self.trials, "give the number of coin tosses in a coordinate's noise", most=2**62)
        expect_positive("clip", self.clip, "give the bound on the norm of the vector before rounding")
        expect_positive("range", self.range, "give the largest number that is not cut off")
        expect_count("dimension", self.dimension, "give the number of coordinates, padding included")
        expect_probability("rate", self.rate, "the share of a unit's fellows that make a lot")
        expect_delta(self.step_delta)
        expect(self.step_delta < 0.5, "step_delta < 1/2", self.step_delta, "it counts twice, so choose a small one")

    @property
    def noise_multiplier(self) -> float:
        """That of the Gaussian which this noise resembles, before rounding."""
        return math.sqrt(self.trials) * self.range / (self.clip * (self.levels - 1))


@dataclass(frozen=True)
class Covered:
    """A release to units that another event has paid for: in a cycle, each takes part in one round alone."""


@dataclass(frozen=True)
class NonPrivate:
    """A release without any protection: epsilon is infinite."""


@dataclass(frozen=True)
class Unpriced:
    """A release whose privacy nobody has proven; a ledger refuses it."""

    reason: str


Priced = Gaussian | PoissonGaussian | FixedSizeGaussian | DiscreteGaussianSum | BinomialSum
"""What has a noise multiplier."""

Event = (
    Gaussian | PoissonGaussian | FixedSizeGaussian | DiscreteGaussianSum | BinomialSum | Covered | NonPrivate | Unpriced
)

_KINDS: dict[str, type] = {
    "gaussian": Gaussian,
    "poisson_gaussian": PoissonGaussian,
    "fixed_size_gaussian": FixedSizeGaussian,
    "discrete_gaussian_sum": DiscreteGaussianSum,
    "binomial_sum": BinomialSum,
    "covered": Covered,
    "non_private": NonPrivate,
    "unpriced": Unpriced,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def relation_of(event: Event) -> Relation | None:
    """The relation under which an event is priced, or None where it says nothing about one."""
    if isinstance(event, (FixedSizeGaussian, BinomialSum)):
        return Relation.REPLACE
    if isinstance(event, (Gaussian, PoissonGaussian, DiscreteGaussianSum)):
        return Relation.ADD_REMOVE
    return None


def common_relation(events: list[Event]) -> Relation:
    """The one relation that all events of a ledger share; refused where there is none."""
    relations = {relation for relation in map(relation_of, events) if relation is not None}
    if len(relations) > 1:
        raise CannotPrice(
            "Expected one way of drawing cohorts in a ledger, found Poisson (add or remove one) beside fixed "
            "size (replace one): their epsilons speak of different neighbours, so use one of them throughout."
        )
    return relations.pop() if relations else Relation.ADD_REMOVE


def protects(event: Event) -> bool:
    """Whether the event hides anything: noise of a positive scale, drawn in a way that has a price."""
    if isinstance(event, Covered):
        return True
    return not isinstance(event, (NonPrivate, Unpriced)) and event.noise_multiplier > 0


def to_json(event: Event) -> dict[str, Any]:
    """The event as a flat JSON object.

    >>> to_json(PoissonGaussian(1.5, 0.1))
    {'kind': 'poisson_gaussian', 'noise_multiplier': 1.5, 'rate': 0.1}
    """
    return {"kind": _NAMES[type(event)], **asdict(event)}


def from_json(fields: dict[str, Any]) -> Event:
    """The inverse of `to_json`."""
    rest = dict(fields)
    kind = _KINDS.get(rest.pop("kind", None))
    if kind is None:
        raise CloisterError(
            f"Expected an event of kind {', '.join(_KINDS)}, found {fields!r}: "
            "the ledger was written by something else or by a newer version."
        )
    event: Event = kind(**rest)
    return event
