"""What a certificate promises: the price of the rounds that were run or, where a run ended by what it had released, of
all that were planned."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloister.privacy.accounts import Account, Planned, Spending, accounts_of, had_it_gone_on
from cloister.privacy.description import QueryDescription, RunDescription
from cloister.privacy.events import Adjacency, Event, FixedSizeGaussian, Gaussian, NonPrivate
from cloister.privacy.ledger import Ledger
from cloister.privacy.pricing import common_adjacency
from cloister.privacy.unit import ProtectedUnit, sample_account


@dataclass(frozen=True)
class Price:
    """Epsilon at one delta, by both accountants (None: infinite). Both are proven upper bounds."""

    delta: float
    epsilon_pld: float | None
    epsilon_rdp: float | None


def price_at(spending: Spending, delta: float) -> Price:
    """What the accounts of a run cost whoever they cost most; under a filter, what the filter promises."""
    if spending.order is not None:
        return Price(delta, finite(spending.filtered(delta)), finite(spending.filtered(delta)))
    return Price(delta, finite(spending.certified(delta)), finite(spending.renyi(delta)))


@dataclass(frozen=True)
class Promised:
    """What a certificate promises: of the rounds that were run or, where a run ended by what it had released, of all
    that were planned, but not more than the budgets, which no run exceeds."""

    spending: Spending
    accounts: Mapping[str, Account]
    early: bool

    @classmethod
    def of(cls, description: RunDescription, ledger: Ledger, early: bool) -> Promised:
        """By description and ledger."""
        accounts = _planned(description, ledger) if early else accounts_of(ledger)
        return cls(Spending(accounts, description.task.copies, description.noise_schedule), accounts, early)

    def price(self, delta: float) -> Price:
        """Epsilon at a delta, for whoever has lost most."""
        found = price_at(self.spending, delta)
        if not self.early:
            return found
        allowed = self._allowed([account for account in self.accounts.values() if account.events], delta)
        bounds = (found.epsilon_pld, found.epsilon_rdp)
        pld, rdp = (finite(min(math.inf if one is None else one, allowed)) for one in bounds)
        return Price(delta, pld, rdp)

    def account(self, account: Account, delta: float) -> float:
        """Epsilon at a delta, for one account."""
        if self.spending.order is not None:
            return Spending({account.unit: account}).filtered(delta)
        spent = self.spending.lost(account, delta)
        return min(spent, self._allowed([account], delta)) if self.early else spent

    def profile(self, deltas: Sequence[float]) -> list[tuple[float, float]]:
        """(epsilon, delta), for whoever has lost most, at many deltas: by our accountant alone, because the second
        opinion that a certified price has takes long."""
        allowed = [account for account in self.accounts.values() if account.events]
        return [(min(self.spending.bound(delta), self._allowed(allowed, delta)), delta) for delta in deltas]

    def _allowed(self, accounts: Sequence[Account], delta: float) -> float:
        """The most that budgets allow at a delta, where the number of rounds is promised and not counted."""
        budgets = [account.budget for account in accounts] if self.early else []
        return max((b.epsilon if b is not None and b.delta == delta else math.inf for b in budgets), default=math.inf)


def _planned(description: RunDescription, ledger: Ledger) -> dict[str, Account]:
    queries = {query.name: Planned(query.times, _cost_of(query, description, ledger)) for query in description.queries}
    return had_it_gone_on(ledger, description.rounds, queries, _kinds(description), _by_round(description))


def _by_round(description: RunDescription) -> list[int]:
    """How many times as many releases each round has, where rounds differ."""
    local = description.method.local
    given = (local.get(name) for name in ("local_steps", "local_epochs"))
    return next((list(found) for found in given if isinstance(found, (list, tuple))), [])


def _kinds(description: RunDescription) -> dict[str, object]:
    """All accounts that a run may charge, those together whose rounds cost the same."""
    sizes, noises = description.task.sizes, description.noise_multipliers
    if description.method.unit != ProtectedUnit.SAMPLE or sizes is None:
        return {description.method.unit: None}
    own = noises or (None,) * len(sizes)
    return {sample_account(client): (n, own[client]) for client, n in enumerate(sizes) if n}


def _cost_of(
    query: QueryDescription, description: RunDescription, ledger: Ledger
) -> Callable[[str], tuple[Event, int]]:
    """What one answer to a query costs an account. (That all units take part is all that counts, not how many.)"""
    replaced = common_adjacency({entry.event for entry in ledger.entries}) is Adjacency.REPLACE_ONE
    samples = description.method.unit == ProtectedUnit.SAMPLE
    numbers = {sample_account(client): client for client in range(description.task.clients)} if samples else {}

    def cost(unit: str) -> tuple[Event, int]:
        several = len(query.noise_multipliers) > 1
        noise = query.noise_multipliers[numbers.get(unit, 0) if several else 0]
        if not noise:
            return NonPrivate(), 1
        event = FixedSizeGaussian(noise, 1000, 1000) if replaced else Gaussian(noise)
        return event, description.task.copies if samples else 1

    return cost


def finite(value: float) -> float | None:
    """The number; None where it is infinite."""
    return value if math.isfinite(value) else None
