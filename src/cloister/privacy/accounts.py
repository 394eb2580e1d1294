"""What a ledger's accounts have come to: who took part how often, and what that costs whoever it costs most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cloister.privacy.accountant import PrivacyLoss, rdp_epsilon, rdp_of, worth_of
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Event, NonPrivate
from cloister.privacy.ledger import Entry, Ledger
from cloister.privacy.pricing import pricing_of
from cloister.privacy.renyi_filter import FilteredLoss, epsilon_at, room_at


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
        return sum(count for event, count in self.events.items() if not pricing_of(event).free)

    def loss(self, filtered: bool = True) -> PrivacyLoss | FilteredLoss:
        """All of them together: by the filter that they went through, if they did and it is asked for."""
        order = None if self.budget is None or not filtered else self.budget.order
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


@dataclass(frozen=True)
class Planned:
    """A query that is asked so many times, and what an answer costs an account: the event, and how many of them."""

    times: int
    cost: Callable[[str], tuple[Event, int]]


def had_it_gone_on(
    ledger: Ledger,
    rounds: int,
    queries: Mapping[str, Planned],
    kinds: Mapping[str, object],
    by_round: Sequence[int] = (),
) -> dict[str, Account]:
    """What accounts would have come to in all planned rounds, of which some were not run.

    When a run ends by what it has released, the number of its rounds is itself a release. What was run is then computed
    from what might have been, and costs no more than all of it. Every account there is, also of those who have not come
    yet, is charged for every round that is left, as in the first one that it paid for; `kinds` are all accounts, and
    those of one kind pay the same. Where rounds differ, `by_round` says how many times as many releases each of them
    has. Where nobody of a kind has paid, its price is not known, and counts as infinite.
    Queries are charged for as often as they would still be asked, whether they were asked before or not.
    """
    found = accounts_of(ledger)
    for unit in kinds:
        found.setdefault(unit, Account(unit, None))
    done = max((entry.round for entry in ledger.entries if entry.what == "update"), default=0)
    paid: dict[str, Entry] = {}
    of_kind: dict[object, Entry] = {}
    asked: dict[tuple[str, str], set[int]] = {}
    for entry in ledger.entries:
        asked.setdefault((entry.what, entry.unit), set()).add(entry.round)  # one that was paid for twice is one
        if entry.what == "update" and not pricing_of(entry.event).free:
            paid.setdefault(entry.unit, entry)
            of_kind.setdefault(kinds.get(entry.unit), entry)
    for unit, account in found.items():
        if unit not in kinds:
            continue
        first = paid.get(unit) or of_kind.get(kinds[unit])
        if rounds > done and (paid or done):
            left = rounds - done if first is None else _releases_left(first, done, rounds, by_round)
            account.events[NonPrivate() if first is None else first.event] += left
        for name, query in queries.items():
            left = query.times - len(asked.get((name, unit), ()))
            if left > 0:
                event, count = query.cost(unit)
                account.events[event] += count * left
    return found


def _releases_left(paid: Entry, done: int, rounds: int, by_round: Sequence[int]) -> int:
    """How many releases are in the rounds after `done`, by what a round cost that was paid for."""
    if not by_round:
        return paid.count * (rounds - done)
    return paid.count * sum(by_round[done:rounds]) // by_round[paid.round - 1]


class Spending:
    """What the accounts of a run come to: the most that any one of them has lost.

    Where a sample may lie with `copies` clients, each release was charged so many times. That is exact where those
    clients have the same history; where they have not, what several different ones come to together is bounded at
    every Renyi order by the largest of them.

    `adaptive`: noise may have been chosen by what was released before, and then a filter's promise is all that holds.
    A filter that only kept clients which overlap to one order leaves every other proof as it is.
    """

    def __init__(self, accounts: dict[str, Account], copies: int = 1, adaptive: bool = True) -> None:
        self.charged = [account for account in accounts.values() if account.events]
        different = {_history(account): account for account in self.charged}
        self.accounts = list(different.values()) or [Account("nobody", None)]
        self.losses = [account.loss(adaptive) for account in self.accounts]
        self.copies, self.adaptive = copies, adaptive
        self.mixed = copies > 1 and len(self.accounts) > 1

    def certified(self, delta: float) -> float:
        """The most at this delta, by the accountants that a certificate may rest on."""
        if self.mixed:
            return self.renyi(delta)
        return max(loss.certified(delta) for loss in self.losses)

    def bound(self, delta: float) -> float:
        """As `certified`, without a second opinion; under a filter, what it allows. For many deltas."""
        if self.order is not None:
            return self.filtered(delta)
        return self.renyi(delta) if self.mixed else max(loss.epsilon(delta) for loss in self.losses)

    def renyi(self, delta: float) -> float:
        """The most at this delta by Renyi divergences alone."""
        if self.mixed:
            return rdp_epsilon([account.events for account in self.accounts], delta)
        return max(loss.epsilon(delta, "rdp") for loss in self.losses)

    def lost(self, account: Account, delta: float) -> float:
        """The most that a sample of one client has lost: by what that client released, and by what others did with
        which it may lie as well."""
        if self.copies == 1 or (account.events and not self.mixed):
            return account.loss(self.adaptive).certified(delta)
        if not self.mixed:  # its own client has released nothing, and the others, all alike, what one account says
            events = self.accounts[0].events
            others = {event: -(-count * (self.copies - 1) // self.copies) for event, count in events.items()}
            return replace(self.accounts[0], events=Counter(others)).loss(self.adaptive).certified(delta)
        alone = {other.unit: rdp_of(other.events, self.order) / self.copies for other in self.charged}
        own = alone.pop(account.unit, 0.0)
        most = np.sort(np.stack(list(alone.values())), axis=0)[-(self.copies - 1) :].sum(0)
        return worth_of(own + most, delta, self.order)

    @property
    def worst(self) -> Account:
        """The account that has lost most."""
        costs = [loss.epsilon(_SOME_DELTA) for loss in self.losses]
        return max(zip(costs, self.accounts, strict=True), key=lambda found: (found[0], found[1].releases))[1]

    @property
    def order(self) -> int | None:
        """The order of the filter whose promise is all that holds, where it is."""
        if not self.adaptive:
            return None
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
