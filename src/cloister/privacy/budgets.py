"""What a unit may lose, and where it begins."""

from __future__ import annotations

from dataclasses import dataclass

from cloister.errors import expect_count, expect_delta, expect_positive
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.renyi_filter import FilteredLoss

Loss = PrivacyLoss | FilteredLoss
"""What a unit has lost: by all accountants, or by the one order of a filter."""


@dataclass(frozen=True)
class Budget:
    """The most that a unit may lose: (epsilon, delta). With an `order`, a Renyi filter of that order sees to it."""

    epsilon: float
    delta: float
    order: int | None = None

    def __post_init__(self) -> None:
        expect_positive("epsilon", self.epsilon, "a budget of nothing allows nothing")
        expect_delta(self.delta)
        if self.order is not None:
            expect_count("order", self.order, "the Renyi order of a filter", least=2)


def nothing_lost(budget: Budget | None) -> Loss:
    """Where a unit begins; a filter's order is its budget's."""
    return PrivacyLoss(growing=True) if budget is None or budget.order is None else FilteredLoss(budget.order)
