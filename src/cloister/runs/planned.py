"""A plan: a run that has not happened, and what it would come to. All figures are those of `terms.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from cloister.core import Method
from cloister.privacy.accounts import Account, Spending
from cloister.privacy.certificate import deltas_beside
from cloister.privacy.certificate_text import round_up
from cloister.privacy.pricing import adjacency_of, pricing_of
from cloister.privacy.promised import Price, price_at
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.runs.noise import Noise
from cloister.runs.request import Target
from cloister.runs.signal import LEAST, Needs, Signal, signal_of
from cloister.runs.terms import Terms


@dataclass(frozen=True)
class Point:
    """Epsilon after some rounds."""

    round: int
    epsilons: list[float]
    """One for each of the plan's deltas."""


@dataclass(frozen=True)
class ClientPlan:
    """What a run would mean for one client's samples."""

    name: str
    account: str
    samples: int
    sampling_rate: float
    """The share of the samples that is in a step's batch, on average."""
    steps_per_round: int
    """The most that any round has."""
    rounds: int
    """In how many rounds the client takes part at most, or in all likelihood."""
    steps: int
    noise_multiplier: float
    epsilon: float
    target: float | None
    signal: float
    """Over noise, of this client alone, over the run, at best (`signal.py`)."""


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A run that has not happened. `str(plan)` is what `cloister plan` prints."""

    asked: Method
    """With its noise, or to be calibrated."""
    method: Method
    """Completed, with its noise."""
    terms: Terms
    noise: Noise
    delta: float
    target: Target
    names: tuple[str, ...] = ()
    solved: str = "noise_multiplier"
    """What was left out, and found: epsilon, noise_multiplier or rounds."""
    notes: tuple[str, ...] = ()
    """What nobody said and was assumed, and where the rest comes from."""
    _stages: dict[int, tuple[dict[str, Account], Spending]] = field(default_factory=dict, init=False)

    def __repr__(self) -> str:
        spent = f"epsilon {round_up(self.epsilon)} at delta {self.delta:g}"
        return f"<Plan {self.method.name}: {self.rounds} rounds, noise multiplier {self.noise_multiplier:.4g}, {spent}>"

    @property
    def rounds(self) -> int:
        """Those that were asked for, or the most that stay within epsilon with the noise that was given."""
        return self.terms.rounds

    @property
    def clients(self) -> int:
        """How many clients the federation has."""
        return self.terms.clients

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return self.terms.layout.size

    @property
    def expected(self) -> float:
        """How many clients take part in a round, on average."""
        return self.terms.cohort.expected(self.clients)

    @property
    def noise_multiplier(self) -> float:
        """The method's; where clients have noise of their own, the largest."""
        return self.method.mechanism.noise_multiplier or 0.0

    @property
    def protects_samples(self) -> bool:
        """Whether single samples are protected, and not whole clients."""
        return self.method.unit is ProtectedUnit.SAMPLE

    @property
    def deltas(self) -> list[float]:
        """The plan's own delta, and the strict one beside it."""
        return deltas_beside(self.delta)

    @property
    def spending(self) -> Spending:
        """What a run's accounts would come to after all rounds."""
        return self._after(self.rounds)[1]

    @cached_property
    def price(self) -> Price:
        """As the run's certificate would state it: of whoever loses most."""
        return price_at(self.spending, self.delta)

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole run at the plan's delta, by the accountant that certifies."""
        return math.inf if self.price.epsilon_pld is None else self.price.epsilon_pld

    @property
    def has_pld(self) -> bool:
        """Whether epsilon is by PLD; discrete noise is priced by RDP alone."""
        return all(pricing_of(event).has_pld for event in self.spending.worst.events)

    @property
    def relation(self) -> str:
        """The neighbors that the epsilon speaks of."""
        event = next(iter(self.spending.worst.events))
        whom = "sample of one client" if self.protects_samples else "client"
        return self.method.adjacency or f"{adjacency_of(event)} {whom}"

    @cached_property
    def signal(self) -> Signal:
        """What noise leaves of the signal, at best."""
        return signal_of(self.terms, self.noise)

    @property
    def too_small(self) -> bool:
        """Whether there is too little to learn from, whatever the training."""
        return self.signal.run < LEAST

    @cached_property
    def needed(self) -> int | None:
        """How many clients (where samples are protected: samples of every client) it takes for a run with as much
        signal as noise. None: no number suffices."""
        needs = Needs(self.terms, self.asked, self.target, self.delta)
        return needs.samples() if self.protects_samples else needs.clients()

    @cached_property
    def rows(self) -> list[ClientPlan]:
        """Where samples are protected: every client that has some."""
        if not self.protects_samples:
            return []
        accounts, spending = self._after(self.rounds)
        batching, rounds = self.method.local.batching, self.terms.participations
        spent: dict[object, float] = {}
        rows = []
        for client, samples in enumerate(self.terms.sizes):
            if not samples:
                continue
            account = accounts[sample_account(client)]
            history = (account.budget, frozenset(account.events.items()))
            if history not in spent:
                spent[history] = spending.lost(account, self.delta)
            rows.append(
                ClientPlan(
                    name=self.names[client] if self.names else str(client),
                    account=account.unit,
                    samples=samples,
                    sampling_rate=batching.expected(samples) / samples,
                    steps_per_round=batching.most_steps(samples, self.rounds, 1),
                    rounds=rounds,
                    steps=self.terms.steps(self.method, samples),
                    noise_multiplier=self.noise.multipliers[client]
                    if self.noise.multipliers
                    else self.noise_multiplier,
                    epsilon=spent[history],
                    target=account.budget.epsilon if account.budget else None,
                    signal=self.signal.alone[client],
                )
            )
        return rows

    @cached_property
    def curve(self) -> list[Point]:
        """Epsilon over rounds, of whoever loses most."""
        return self.curve_of(self.spending.worst.unit)

    def curve_of(self, account: str, points: int = 10, deltas: list[float] | None = None) -> list[Point]:
        """Epsilon over rounds, of one account: at so many rounds, and after the first."""
        found = []
        for rounds in sorted({1, *(max(1, round(self.rounds * part / points)) for part in range(1, points + 1))}):
            accounts, spending = self._after(rounds)
            own = accounts[account]
            cost = partial(spending.lost, own) if spending.mixed else own.loss(spending.adaptive).epsilon
            found.append(Point(rounds, [cost(delta) for delta in deltas or self.deltas]))
        return found

    def _after(self, rounds: int) -> tuple[dict[str, Account], Spending]:
        """The accounts as they would be after some rounds, and what they come to."""
        if rounds not in self._stages:
            accounts = replace(self.terms, rounds=rounds).accounts(self.noise)
            adaptive = self.method.noise_schedule is not None
            self._stages[rounds] = accounts, Spending(accounts, self.terms.copies, adaptive)
        return self._stages[rounds]

    def __str__(self) -> str:
        from cloister.runs.report.plan import text

        return text(self)
