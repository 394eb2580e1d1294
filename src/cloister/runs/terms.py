"""What the price of a run depends on, and the price: the one place where a method is completed and priced.

A run is prepared by it (`prepare.py`) and planned by it (`plan.py`), so that a plan cannot differ from its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from cloister.core import Cohort, Layout, Method, Samples
from cloister.privacy.accounts import Account
from cloister.privacy.budgets import Budget
from cloister.privacy.description import RunDescription
from cloister.privacy.events import Event
from cloister.privacy.ledger import Charge
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.round.bind_method import bind_method
from cloister.round.charges import charge_of, event_of
from cloister.runs.noise import Clients, Noise, calibrate_noise, with_noise
from cloister.runs.queries import Queries
from cloister.runs.request import Target


@dataclass(frozen=True)
class Terms:
    """Everything but the method and the target: no sample's value is among it.

    `sizes` are the clients' numbers of samples; where clients are protected only their number counts. `norms` are those
    of the gradients of samples made of noise, `public_median` is of the gradients of public ones (`BindContext`).
    """

    cohort: Cohort
    rounds: int
    layout: Layout
    sizes: Sequence[int]
    copies: int = 1
    public_samples: Samples | None = None
    norms: Callable[[], Tensor] | None = None
    public_median: Callable[[], float] | None = None
    queries: Queries | None = None
    """What is asked of the data beside training, for a share of the budget."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.sizes)

    @cached_property
    def participations(self) -> int:
        """In how many rounds a client takes part at most (or, of cohorts that are drawn, in all likelihood)."""
        return self.cohort.participations(self.rounds, self.clients)

    def complete(self, method: Method) -> Method:
        """The method, completed for this model and these cohorts; refused where no noise would make it private."""
        return bind_method(
            method, self.cohort, self.layout, self.clients, self.public_samples, self.norms, self.public_median
        )

    def event(self, method: Method) -> Event:
        """What a release costs, where clients are protected."""
        return event_of(self.complete(method), self.cohort, self.layout, self.clients)

    def charge(self, method: Method, multiplier: float, samples: int) -> Charge:
        """What all rounds cost a client with so many samples, where samples are protected."""
        return self._charge(self.complete(with_noise(method, multiplier)), multiplier, samples)

    def _charge(self, method: Method, multiplier: float, samples: int) -> Charge:
        """The same for a method that is complete."""
        steps = self.steps(method, samples)
        return charge_of(method, multiplier, samples, steps, self.copies, self.layout)

    def steps(self, method: Method, samples: int) -> int:
        """How many a client with so many samples takes in all rounds, at most or in all likelihood."""
        return method.local.batching.most_steps(samples, self.rounds, self.participations)

    def noise(self, method: Method, epsilon: Target, delta: float | None, known: RunDescription | None = None) -> Noise:
        """The method with calibrated noise, and the budgets. `known` is the description of a run that is resumed."""
        # Cohorts that are everybody on average are everybody always; that they are in all likelihood does not suffice.
        always = self.cohort.expected(self.clients) == self.clients
        clients = Clients(
            self.sizes,
            self.charge,
            self.copies > 1,
            always,
            lambda target, units: () if self.queries is None else self.queries.beside(target, delta, units),
        )
        releases = self.cohort.releases(self.rounds, self.clients)
        return calibrate_noise(method, self.event, releases, clients, epsilon, delta, known)

    def accounts(self, noise: Noise) -> dict[str, Account]:
        """What the accounts of a run come to after all rounds, if everybody takes part as often as is likely."""
        method = self.complete(noise.method)
        if method.unit is ProtectedUnit.CLIENT:
            event = event_of(method, self.cohort, self.layout, self.clients)
            releases = self.cohort.releases(self.rounds, self.clients)
            budget = noise.budgets.get(method.unit)
            events = Counter({event: releases}) + self._beside(budget, self.clients)
            return {method.unit: Account(method.unit, budget, events)}
        found: dict[str, Account] = {}
        known: dict[tuple[float, int], Counter[Event]] = {}
        for client, samples in enumerate(self.sizes):
            if samples:
                key = noise.multipliers[client] if noise.multipliers else method.mechanism.noise_multiplier or 0.0
                if (key, samples) not in known:
                    charge = self._charge(method, key, samples)
                    known[key, samples] = Counter({charge.event: charge.count})
                unit = sample_account(client)
                budget = noise.budgets.get(unit)
                found[unit] = Account(unit, budget, known[key, samples] + self._beside(budget, samples))
        return found

    def _beside(self, budget: Budget | None, units: int) -> Counter[Event]:
        """What queries cost one of so many units."""
        if self.queries is None or budget is None:
            return Counter()
        found: Counter[Event] = Counter()
        for event, count in self.queries.beside(budget.epsilon, budget.delta, units):
            found[event] += count  # two queries may have the same noise
        return found
