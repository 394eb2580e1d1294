"""From events to epsilon. dp-accounting describes what one release gives away, `composition` adds releases up, and
this file says what is valid where.

Guarantee: every epsilon returned here is an upper bound on the privacy loss of the events composed
(adaptively), under the relation that `events.common_relation` names. Discretisation is always pessimistic.

| cohort           | relation       | privacy loss distribution (PLD)                | Renyi (RDP)                     |
|------------------|----------------|------------------------------------------------|---------------------------------|
| everyone         | add/remove one | Gaussian, sensitivity C                        | the same                        |
| Poisson          | add/remove one | Poisson-subsampled Gaussian, both directions   | the same                        |
| fixed size       | replace one    | strict profile, sensitivity 2C (`fixed_size`)  | Wang, Balle & Kasiviswanathan   |
| modular sum      | add/remove one | left to RDP                                    | `discrete.py`                   |
| binomial, lots   | replace one    | `binomial.py`, sampled as fixed sizes are      | unknown: infinity               |
| anything else    | -              | refused                                        | refused                         |
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from cloister.errors import CannotPrice, expect_delta
from cloister.privacy import binomial, discrete, fixed_size
from cloister.privacy.composition import Composition, Step, rounding, steps_of
from cloister.privacy.events import (
    BinomialSum,
    Covered,
    DiscreteGaussianSum,
    Event,
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    Relation,
    Unpriced,
    common_relation,
    relation_of,
)

Accountant = Literal["pld", "rdp"]

# Integer orders always converge; the fractional ones matter when epsilon is large, and an order that does not
# converge is left out by dp-accounting, which keeps the bound valid.
RDP_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.5, 3.5, *range(2, 65), 80, 96, 128, 192, 256, 512, 1024)

_LOG_TAIL = -50.0  # ln of the probability mass that may be moved to infinity, as in dp-accounting
_LEAST_NOISE = 1e-5  # less is priced as none
_LEAST_DELTA = 1e-10  # anything below is left to RDP
_MOST_LOSS = 1e6  # a release that can lose more is left to RDP
_MOST_STEP_POINTS = 2**19  # the finest grid for one step
_MOST_POINTS = 2**24  # dp-accounting is not asked to compose more than this
_GROWTH = 4.0  # a window that was outgrown gives way to one for so many times as many releases ...
_FEW_RELEASES = 64  # ... and for so many at least
_TAIL_DEVIATIONS = 9.9  # P(Z > 9.9) < exp(-50) for a standard normal Z


class PrivacyLoss:
    """The composed privacy loss of a growing list of events, kept so that one more event costs next to nothing."""

    def __init__(self) -> None:
        self._counts: Counter[Event] = Counter()
        self._pending: Counter[Event] = Counter()  # not yet part of the composed distributions
        self._composed: list[Composition] = []  # one for each direction in which neighbours can differ
        self._known: dict[tuple[float, Accountant], float] = {}
        self._path: dict[float, tuple[float, float]] = {}  # the last two epsilons: where to look for the next one

    def add(self, event: Event, count: int = 1) -> None:
        """Compose `count` more releases of the event; refuses what has no price."""
        if isinstance(event, Unpriced):
            raise CannotPrice(f"Expected a cohort and a mechanism with a known price, found none: {event.reason}.")
        if isinstance(event, Covered):
            return
        if isinstance(event, BinomialSum):
            binomial.loss(event)
        if event not in self._counts:
            common_relation([*self._counts, event])
        self._counts[event] += count
        self._pending[event] += count
        self._known.clear()

    def copy(self) -> PrivacyLoss:
        """An independent continuation: what this would cost if something were added."""
        twin = PrivacyLoss()
        twin._counts, twin._pending = self._counts.copy(), self._pending.copy()
        twin._composed, twin._path = self._composed, self._path.copy()
        return twin

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """The smallest epsilon proven at this delta (0 when nothing was released, infinity without noise)."""
        expect_delta(delta)
        if any(_unbounded(event) for event in self._counts):
            return math.inf
        if not self._counts:
            return 0.0
        if (delta, accountant) not in self._known:
            found = self._pld_epsilon(delta) if accountant == "pld" else None
            self._known[delta, accountant] = rdp_epsilon([self._counts], delta) if found is None else found
        return self._known[delta, accountant]

    def certified(self, delta: float) -> float:
        """As `epsilon`, and not below what dp-accounting's own composition of all releases at once comes to.

        Two programs that have nothing in common but the description of one release: what goes into a certificate
        does not rest on ours alone.
        """
        ours = self.epsilon(delta)
        if not self._counts or math.isinf(ours) or delta < _LEAST_DELTA or not self._has_pld:
            return ours
        if _grid_points(self._counts) > _MOST_POINTS:
            return ours
        interval, total = min(map(_interval, self._counts)), None
        for event, count in self._counts.items():
            many = _step_pld(event, interval).self_compose(count)
            total = many if total is None else total.compose(many)
        assert total is not None
        return max(ours, float(total.get_epsilon_for_delta(delta)))

    @property
    def _has_pld(self) -> bool:
        return not any(isinstance(event, DiscreteGaussianSum) for event in self._counts)

    def _pld_epsilon(self, delta: float) -> float | None:
        """None where RDP has to answer: delta is so small that rounding counts, or losses so large or so many."""
        if not self._has_pld:
            return None
        precise = delta >= max(_LEAST_DELTA, 4 * rounding(self._counts.total()))
        if not precise or max(map(_largest_loss, self._counts)) > _MOST_LOSS or not self._compose():
            return None
        last, before = self._path.get(delta, (0.0, 0.0))
        found, guess = 0.0, 2 * last - before
        for direction in self._composed:
            found, guess = direction.epsilon(delta, least=found, guess=guess), 0.0
        self._path[delta] = found, last
        return found

    def _compose(self) -> bool:
        """Bring the composed distributions up to date, anew where a finer grid or a wider window is called for.

        False where no window is wide enough.
        """
        interval = min(map(_interval, self._counts))
        directions = 2 if any(isinstance(event, PoissonGaussian) for event in self._counts) else 1
        known = len(self._composed) == directions and self._composed[0].interval == interval
        headroom = max(_GROWTH, _FEW_RELEASES / self._counts.total()) if known else 1.0
        composed = []
        for direction in range(directions):
            total = self._composed[direction] if known else None
            if total is not None:
                for event, count in self._pending.items():
                    total = total.plus(_step(event, interval, direction), count)
            if total is None or not total.fits:
                parts = [(_step(event, interval, direction), count) for event, count in self._counts.items()]
                total = Composition.of(parts, headroom)
            if total is None:
                return False
            composed.append(total)
        self._composed, self._pending = composed, Counter()
        return True


def epsilon(event: Event, count: int, delta: float, accountant: Accountant = "pld") -> float:
    """Epsilon of `count` releases of one event.

    >>> round(epsilon(PoissonGaussian(noise_multiplier=0.95, rate=0.1), 300, delta=1 / 500), 2)
    9.37
    """
    loss = PrivacyLoss()
    if count:
        loss.add(event, count)
    return loss.epsilon(delta, accountant)


def best_step_delta(event: BinomialSum, count: int, delta: float) -> float:
    """The `step_delta` at which `count` releases of the event are cheapest: to be fixed before the first of them.

    All that is set aside is a part of delta; the more, the closer the other bounds.
    """
    expect_delta(delta)
    most = min(delta / (2 * event.rate * count), 0.5)
    chances = [most * 10 ** (-place / 2) for place in range(1, 12)]

    def cost(chance: float) -> float:
        try:
            return epsilon(replace(event, step_delta=chance), count, delta)
        except CannotPrice:
            return math.inf

    return min(chances, key=cost)


def _unbounded(event: Event) -> bool:
    """Whether nothing is known but that it is a great deal; with next to no noise the arithmetic itself overflows."""
    if isinstance(event, (Covered, Unpriced)):
        return False
    return isinstance(event, NonPrivate) or event.noise_multiplier < _LEAST_NOISE


def _typical_loss(event: Event) -> float:
    """The size of one step's privacy loss, roughly."""
    if isinstance(event, PoissonGaussian):
        return event.rate / event.noise_multiplier
    if isinstance(event, FixedSizeGaussian):
        return 2 * event.size / event.population / event.noise_multiplier
    if isinstance(event, BinomialSum):
        return event.rate * binomial.loss(event).shift
    assert isinstance(event, Gaussian)
    return 1 / event.noise_multiplier


def _largest_loss(event: Event) -> float:
    """Where one step's privacy loss is cut off, whatever the sampling."""
    if isinstance(event, BinomialSum):
        return binomial.loss(event).top
    assert isinstance(event, (Gaussian, PoissonGaussian, FixedSizeGaussian))
    shift = (2 if isinstance(event, FixedSizeGaussian) else 1) / event.noise_multiplier
    return shift * shift / 2 + _TAIL_DEVIATIONS * shift


def _interval(event: Event) -> float:
    """The grid of the privacy loss: a hundredth of the loss's typical size in one step.

    Connecting the dots on a grid of width h adds at most h^2/4 to the variance of one step's loss, so a
    hundredth costs about 1/40,000 of it. Very small or very wide losses get a coarser grid than that, which
    moves epsilon upwards, never downwards.
    """
    finest = max(1e-5, _largest_loss(event) / _MOST_STEP_POINTS)
    return max(finest, min(0.01 * _typical_loss(event), 1e-2))


def _grid_points(counts: Counter[Event]) -> float:
    """About how many points the composed distribution has: its mean and ten deviations, generously."""
    interval = min(map(_interval, counts))
    mean = sum(count * _typical_loss(event) ** 2 for event, count in counts.items())
    return (2 * mean + 20 * math.sqrt(mean)) / interval


def _step(event: Event, interval: float, direction: int) -> Step:
    steps = _steps(event, interval)
    return steps[direction % len(steps)]  # one that is the same in both directions stands for both


@lru_cache(maxsize=16)
def _steps(event: Event, interval: float) -> tuple[Step, ...]:
    return steps_of(_step_pld(event, interval))


def _step_pld(event: Event, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(event, FixedSizeGaussian):
        # One client leaves and another comes: the sum moves by twice the bound.
        seen = partial(fixed_size.gaussian, shift=2 / event.noise_multiplier)
        return fixed_size.sampled(seen, event.size / event.population, _largest_loss(event), interval)
    if isinstance(event, BinomialSum):
        seen = partial(binomial.profile, of=binomial.loss(event))
        return fixed_size.sampled(seen, event.rate, _largest_loss(event), interval)
    assert isinstance(event, (Gaussian, PoissonGaussian))
    return pld.from_gaussian_mechanism(
        event.noise_multiplier,
        sampling_prob=event.rate if isinstance(event, PoissonGaussian) else 1.0,
        value_discretization_interval=interval,
        log_mass_truncation_bound=_LOG_TAIL,
    )


def rdp_epsilon(histories: Sequence[Counter[Event]], delta: float) -> float:
    """Epsilon of the costliest of some histories, the costliest being found at every Renyi order by itself."""
    return worth_of(np.max([rdp_of(counts) for counts in histories], axis=0), delta)


def rdp_of(counts: Counter[Event], order: int | None = None) -> Any:
    """The Renyi divergences of a history, at all orders or at one."""
    total = np.zeros(len(RDP_ORDERS) if order is None else 1)
    for event, count in counts.items():
        if _unbounded(event):
            total = total + math.inf
        elif not isinstance(event, Covered):
            total = total + count * (_rdp(event) if order is None else rdp_at(event, (order,)))
    return total


def worth_of(divergences: Any, delta: float, order: int | None = None) -> float:
    """Epsilon of what has these Renyi divergences, at all orders or at one."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    with _quiet():
        found, _ = compute_epsilon(RDP_ORDERS if order is None else (order,), divergences, delta)
    return float(found)


@lru_cache(maxsize=4096)
def _rdp(event: Event) -> Any:
    """One release's Renyi divergences at `RDP_ORDERS`; those of several releases add up."""
    return rdp_at(event, RDP_ORDERS)


def rdp_at(event: Event, orders: Sequence[float]) -> Any:
    """One release's Renyi divergences at some orders."""
    if isinstance(event, DiscreteGaussianSum):
        return discrete.rdp(event, tuple(orders))
    if isinstance(event, BinomialSum):  # moments are known of what is left when a chance is set aside, and only of that
        return np.full(len(orders), math.inf)

    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    replace = relation_of(event) is Relation.REPLACE
    relation = dp.NeighboringRelation.REPLACE_ONE if replace else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(list(orders), relation)
    with _quiet():
        accountant.compose(_dp_event(event))
    return accountant._rdp


def _dp_event(event: Event) -> Any:
    import dp_accounting as dp

    if isinstance(event, PoissonGaussian):
        return dp.PoissonSampledDpEvent(event.rate, dp.GaussianDpEvent(event.noise_multiplier))
    if isinstance(event, FixedSizeGaussian):
        # Under replace-one the released sum moves by twice the bound of one contribution.
        return dp.SampledWithoutReplacementDpEvent(
            event.population, event.size, dp.GaussianDpEvent(event.noise_multiplier / 2)
        )
    assert isinstance(event, Gaussian)
    return dp.GaussianDpEvent(event.noise_multiplier)


@contextmanager
def _quiet() -> Iterator[None]:
    """dp-accounting warns about every order that it leaves out; leaving orders out is harmless."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
