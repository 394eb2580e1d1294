"""What a ledger's accounts have come to: who took part how often, and what that costs whoever it costs most."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from cloister.privacy.accounting import PrivacyLoss, rdp_epsilon
from cloister.privacy.events import Covered, Event
from cloister.privacy.filters import FilteredLoss, epsilon_at, room_at
from cloister.privacy.ledger import Budget, Ledger


@dataclass
class Account:
    """One account: what was charged to it, and in how many rounds."""

    unit: str
    budget: Budget | None
    events: Counter[Event] = field(default_factory=Counter)
    rounds: set[int] = field(default_factory=set)

    @property
    def releases(self) -> int:
        """How many releases were paid for."""
        return sum(count for event, count in self.events.items() if not isinstance(event, Covered))

    def loss(self) -> PrivacyLoss | FilteredLoss:
        """All of them together."""
        order = None if self.budget is None else self.budget.order
        loss = PrivacyLoss() if order is None else FilteredLoss(order)
        for event, count in self.events.items():
            loss.add(event, count)
        return loss


def accounts_of(ledger: Ledger) -> dict[str, Account]:
    """Every account to which something was charged, or which has a budget."""
    found = {unit: Account(unit, budget) for unit, budget in ledger.budgets.items()}
    for entry in ledger.entries:
        account = found.setdefault(entry.unit, Account(entry.unit, None))
        account.events[entry.event] += entry.count
        account.rounds.add(entry.round)
    return found


class Spending:
    """What the accounts of a run come to: the most that any one of them has lost.

    Where a sample may lie with `copies` clients, each release was charged so many times. That is exact where those
    clients have the same history; where they have not, what several different ones come to together is bounded at
    every Renyi order by the largest of them.
    """

    def __init__(self, accounts: dict[str, Account], copies: int = 1) -> None:
        different = {_history(account): account for account in accounts.values() if account.events}
        self.accounts = list(different.values()) or [Account("nobody", None)]
        self.losses = [account.loss() for account in self.accounts]
        self.mixed = copies > 1 and len(self.accounts) > 1

    def certified(self, delta: float) -> float:
        """The most at this delta, by the accountants that a certificate may rest on."""
        if self.mixed:
            return self.renyi(delta)
        return max(loss.certified(delta) for loss in self.losses)

    def renyi(self, delta: float) -> float:
        """The most at this delta by Renyi divergences alone."""
        if self.mixed:
            return rdp_epsilon([account.events for account in self.accounts], delta)
        return max(loss.epsilon(delta, "rdp") for loss in self.losses)

    @property
    def worst(self) -> Account:
        """The account that has lost most."""
        costs = [loss.epsilon(_SOME_DELTA) for loss in self.losses]
        return max(zip(costs, self.accounts, strict=True), key=lambda found: (found[0], found[1].releases))[1]

    @property
    def order(self) -> int | None:
        """The order of the filter that the accounts are under, if they are."""
        return next((a.budget.order for a in self.accounts if a.budget is not None and a.budget.order), None)

    def filtered(self, delta: float) -> float:
        """The most that filters allow, which is what they promise; nothing where nothing was released."""
        budgets = [account.budget for account in self.accounts if account.events]
        orders = {budget.order for budget in budgets if budget is not None and budget.order}
        if self.mixed and len(orders) > 1:  # divergences rise with the order: at the smallest, all are bounded
            rooms = [room_at(b.order, b.epsilon, b.delta) for b in budgets if b is not None and b.order]
            return epsilon_at(min(orders), max(rooms), delta)
        return max((_allowed(budget, delta) for budget in budgets), default=0.0)


_SOME_DELTA = 1e-5


def _allowed(budget: Budget | None, delta: float) -> float:
    if budget is None or budget.order is None:
        return math.inf
    if delta == budget.delta:
        return budget.epsilon
    return epsilon_at(budget.order, room_at(budget.order, budget.epsilon, budget.delta), delta)


def _history(account: Account) -> tuple[object, ...]:
    return account.budget, frozenset(account.events.items())
