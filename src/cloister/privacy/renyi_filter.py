"""A Renyi filter: what lets noise be chosen as one goes, and a run be stopped by what it has spent.

An accountant that takes the best of many Renyi orders, or composes whole distributions, is proven for events that were
fixed in advance. Where the noise of a round follows from what was released before, the sum of Renyi divergences is
bounded at ONE order, fixed in advance (Feldman & Zrnic, "Individual privacy accounting via a Renyi filter", NeurIPS
2021; Lecuyer 2021): as long as no release is made that would bring the sum above B, all releases together are
(order, B)-RDP, however each was chosen.
"""

from __future__ import annotations

import math
from functools import lru_cache

from cloister.errors import UnsupportedMechanismError
from cloister.privacy.accountant import RDP_ORDERS, Accountant, Releases
from cloister.privacy.events import Event
from cloister.privacy.pricing import pricing_of


class FilteredLoss:
    """The sum of Renyi divergences of one order; as `PrivacyLoss`, of events that may depend on one another."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.spent = 0.0

    def add(self, event: Event, count: int = 1) -> None:
        """Compose `count` more releases of the event; refuses what has no price."""
        refusal = pricing_of(event).refusal
        if refusal is not None:
            raise UnsupportedMechanismError(refusal)
        self.spent += count * _divergence(event, self.order)

    def copy(self) -> FilteredLoss:
        """An independent continuation."""
        twin = FilteredLoss(self.order)
        twin.spent = self.spent
        return twin

    def epsilon(self, delta: float, accountant: Accountant = "rdp") -> float:
        """What the sum so far comes to at this delta."""
        return epsilon_at(self.order, self.spent, delta)

    def certified(self, delta: float) -> float:
        """The same: there is one accountant only."""
        return self.epsilon(delta)


def epsilon_at(order: int, divergence: float, delta: float) -> float:
    """What (order, divergence)-RDP is worth at a delta, by that order alone."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    return float(compute_epsilon([order], [divergence], delta)[0])


def room_at(order: int, epsilon: float, delta: float) -> float:
    """How much divergence of that order an epsilon has room for; the inverse of `epsilon_at`."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def best_order(event: Event, count: int, delta: float, beside: Releases = ()) -> int:
    """The order at which so many releases of an event (and some others) are cheapest: fixed before the first one."""
    orders = [int(order) for order in RDP_ORDERS if order == int(order) and order >= 2]
    return min(orders, key=lambda order: filtered_epsilon(event, count, delta, order, beside))


def filtered_epsilon(event: Event, count: int, delta: float, order: int | None = None, beside: Releases = ()) -> float:
    """What so many releases of an event, known in advance, cost under a filter (of the best order for them)."""
    order = order or best_order(event, count, delta, beside)
    spent = sum(times * _divergence(released, order) for released, times in ((event, count), *beside))
    return epsilon_at(order, spent, delta)


@lru_cache(maxsize=2**16)
def _divergence(event: Event, order: int) -> float:
    return float(pricing_of(event).rdp((order,))[0])
