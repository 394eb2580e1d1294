"""From events to epsilon: `pricing` says what one release gives away, `composition` adds releases up, and this file
says which of the two accountants answers.

Guarantee: every epsilon returned here is an upper bound on the privacy loss of the events composed (adaptively), under
the adjacency that `pricing.common_adjacency` names. Discretization is always pessimistic.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from cloister.errors import UnsupportedMechanismError, expect_delta
from cloister.privacy.composition import Composition, Step, rounding, steps_of
from cloister.privacy.events import BinomialSum, Event
from cloister.privacy.gaussian_price import quiet
from cloister.privacy.pricing import common_adjacency, pricing_of

Accountant = Literal["pld", "rdp"]

# Integer orders always converge; the fractional ones matter when epsilon is large, and an order that does not
# converge is left out by dp-accounting, which keeps the bound valid.
RDP_ORDERS = (1.1, 1.25, 1.5, 1.75, 2.5, 3.5, *range(2, 65), 80, 96, 128, 192, 256, 512, 1024)

_LEAST_DELTA = 1e-10  # anything below is left to RDP
_MOST_LOSS = 1e6  # a release that can lose more is left to RDP
_MOST_POINTS = 2**24  # dp-accounting is not asked to compose more than this
_GROWTH = 4.0  # a window that was outgrown gives way to one for so many times as many releases ...
_FEW_RELEASES = 64  # ... and for so many at least


class PrivacyLoss:
    """The composed privacy loss of a list of events, kept so that one more event costs next to nothing.

    One that is `growing` makes room for more events from the start.
    """

    def __init__(self, growing: bool = False) -> None:
        self._growing = growing
        self._counts: Counter[Event] = Counter()
        self._pending: Counter[Event] = Counter()  # not yet part of the composed distributions
        self._composed: list[Composition] = []  # one for each direction in which neighbors can differ
        self._known: dict[tuple[float, Accountant], float] = {}
        self._path: dict[float, tuple[float, float]] = {}  # the last two epsilons: where to look for the next one
        # Of all events together, brought up to date when a new one comes:
        self._unbounded, self._has_pld = False, True
        self._directions, self._interval, self._largest_loss = 1, math.inf, 0.0

    def add(self, event: Event, count: int = 1) -> None:
        """Compose `count` more releases of the event; refuses what has no price."""
        if event not in self._counts:
            if pricing_of(event).free:
                return
            self._admit(event)
        self._counts[event] += count
        self._pending[event] += count
        self._known.clear()

    def _admit(self, event: Event) -> None:
        found = pricing_of(event)
        if found.refusal is not None:
            raise UnsupportedMechanismError(found.refusal)
        common_adjacency([*self._counts, event])
        self._unbounded |= found.unbounded
        self._has_pld &= found.has_pld
        self._directions = max(self._directions, found.directions)
        self._interval = min(self._interval, found.interval)
        self._largest_loss = max(self._largest_loss, found.largest_loss)

    def copy(self) -> PrivacyLoss:
        """An independent continuation: what this would cost if something were added."""
        twin = copy.copy(self)
        twin._counts, twin._pending = self._counts.copy(), self._pending.copy()
        twin._known, twin._path = self._known.copy(), self._path.copy()
        return twin

    def epsilon(self, delta: float, accountant: Accountant = "pld") -> float:
        """The smallest epsilon proven at this delta (0 when nothing was released, infinity without noise)."""
        if delta not in self._path:  # those were found to be probabilities before
            expect_delta(delta)
        if self._unbounded:
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
        if self._grid_points() > _MOST_POINTS:
            return ours
        return max(ours, _composed_at_once(tuple(self._counts.items()), self._interval, delta))

    def _grid_points(self) -> float:
        """About how many points the composed distribution has: its mean and ten deviations, generously."""
        mean = sum(count * pricing_of(event).typical_loss ** 2 for event, count in self._counts.items())
        return (2 * mean + 20 * math.sqrt(mean)) / self._interval

    def _pld_epsilon(self, delta: float) -> float | None:
        """None where RDP has to answer: delta is so small that rounding counts, or losses so large or so many."""
        precise = delta >= max(_LEAST_DELTA, 4 * rounding(self._counts.total()))
        if not self._has_pld or not precise or self._largest_loss > _MOST_LOSS or not self._compose():
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
        known = len(self._composed) == self._directions and self._composed[0].interval == self._interval
        headroom = max(_GROWTH, _FEW_RELEASES / self._counts.total()) if known or self._growing else 1.0
        composed = []
        for direction in range(self._directions):
            total = self._composed[direction] if known else None
            if total is not None:
                for event, count in self._pending.items():
                    total = total.plus(_steps(event, self._interval)[direction], count)
            if total is None or not total.fits:
                parts = [(_steps(event, self._interval)[direction], count) for event, count in self._counts.items()]
                total = Composition.of(parts, headroom)
            if total is None:
                return False
            composed.append(total)
        self._composed, self._pending = composed, Counter()
        return True


@lru_cache(maxsize=1024)  # runs of a study that differ in their seed alone have the same releases
def _composed_at_once(releases: tuple[tuple[Event, int], ...], interval: float, delta: float) -> float:
    """Epsilon by dp-accounting's own composition."""
    total = None
    for event, count in releases:
        many = pricing_of(event).pld(interval).self_compose(count)
        total = many if total is None else total.compose(many)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


@lru_cache(maxsize=16)
def _steps(event: Event, interval: float) -> tuple[Step, Step]:
    """One release in both directions; where these are the same, twice the same."""
    steps = steps_of(pricing_of(event).pld(interval))
    return steps[0], steps[-1]


Releases = Sequence[tuple[Event, int]]
"""Events, and how many releases of each."""


def epsilon(event: Event, count: int, delta: float, accountant: Accountant = "pld", beside: Releases = ()) -> float:
    """Epsilon of `count` releases of one event, and of some others beside them.

    >>> from cloister.privacy.events import PoissonGaussian
    >>> round(epsilon(PoissonGaussian(noise_multiplier=0.95, sampling_rate=0.1), 300, delta=1 / 500), 2)
    9.37
    """
    loss = PrivacyLoss()
    for released, times in ((event, count), *beside):
        if times:
            loss.add(released, times)
    return loss.epsilon(delta, accountant)


def best_step_delta(event: BinomialSum, count: int, delta: float) -> float:
    """The `step_delta` at which `count` releases of the event are cheapest: to be fixed before the first of them.

    All that is set aside is a part of delta; the more, the closer the other bounds.
    """
    expect_delta(delta)
    most = min(delta / (2 * event.sampling_rate * count), 0.5)
    chances = [most * 10 ** (-place / 2) for place in range(1, 12)]

    def cost(chance: float) -> float:
        try:
            return epsilon(replace(event, step_delta=chance), count, delta)
        except UnsupportedMechanismError:
            return math.inf

    return min(chances, key=cost)


def rdp_epsilon(histories: Sequence[Counter[Event]], delta: float) -> float:
    """Epsilon of the costliest of some histories, the costliest being found at every Renyi order by itself."""
    return worth_of(np.max([rdp_of(counts) for counts in histories], axis=0), delta)


def rdp_of(counts: Counter[Event], order: int | None = None) -> Any:
    """The Renyi divergences of a history, at all orders or at one."""
    total = np.zeros(len(RDP_ORDERS) if order is None else 1)
    for event, count in counts.items():
        if pricing_of(event).unbounded:
            total = total + math.inf
        else:
            total = total + count * (_rdp(event) if order is None else rdp_at(event, (order,)))
    return total


def worth_of(divergences: Any, delta: float, order: int | None = None) -> float:
    """Epsilon of what has these Renyi divergences, at all orders or at one."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    with quiet():
        found, _ = compute_epsilon(RDP_ORDERS if order is None else (order,), divergences, delta)
    return float(found)


@lru_cache(maxsize=4096)
def _rdp(event: Event) -> Any:
    """One release's Renyi divergences at `RDP_ORDERS`; those of several releases add up."""
    return rdp_at(event, RDP_ORDERS)


def rdp_at(event: Event, orders: Sequence[float]) -> Any:
    """One release's Renyi divergences at some orders."""
    return pricing_of(event).rdp(orders)
