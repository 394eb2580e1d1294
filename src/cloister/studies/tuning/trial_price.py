"""How much noise a private trial needs, so that the selection of the best one stays within the budget.

Every trial keeps to the same two Renyi divergences, whatever its settings (`privacy/selection.py`). These come from one
candidate, at the largest epsilon whose selection the budget pays for. Another candidate with other releases (more
rounds, larger batches) gets the epsilon at which it keeps to them as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloister.data.task import Task
from cloister.errors import CloisterError, UnsupportedMechanismError, expect
from cloister.privacy.accountant import RDP_ORDERS, rdp_at, rdp_of
from cloister.privacy.description import json_hash
from cloister.privacy.events import Adjacency, BestOfTrials, Event
from cloister.privacy.pricing import common_adjacency, pricing_of
from cloister.privacy.selection import TrialCount, TrialPrice, best_price
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.planned import Plan
from cloister.studies.tuning.question import Question
from cloister.studies.tuning.space import Choice, first_of

_PRECISION = 2e-3  # of a trial's epsilon
_LEAST_SHARE = 2.0**-9
"""A trial's epsilon is at least so much of the whole: with less there is nothing to select."""

_QUERIES = (
    *("validation", "validation_share", "validation_fraction", "evaluate_every"),
    *("standardize", "center", "center_rank", "decorrelate"),
    *("patience", "restore_best", "min_delta"),
)
"""Keys of what is asked beside training, for a share of the budget."""

Histories = list[Counter[Event]]
"""What each account is charged in a trial."""


@dataclass
class TrialPrices:
    """What trials may cost, and the epsilon at which each candidate is run."""

    question: Question
    task: Task
    count: TrialCount
    epsilon: float
    delta: float
    price: TrialPrice = field(init=False)
    reference: float = field(init=False)
    """The epsilon of the candidate by which the price was found."""
    _known: dict[object, float] = field(default_factory=dict)
    _about: tuple[ProtectedUnit, Adjacency] | None = None
    """Whom the first candidate protects, and from telling apart which neighbors."""

    def __post_init__(self) -> None:
        settings = first_of(self.question.space)

        def cost(epsilon: float) -> float:
            return self._best(self._planned(settings, epsilon)).epsilon(self.count, self.delta)

        self.reference = _largest(cost, self.epsilon, self.epsilon)
        histories = self._planned(settings, self.reference)
        self.price = self._best(histories)
        self._known[self._releases(settings)] = self.reference

    @property
    def adjacency(self) -> Adjacency:
        """Which neighbors the price of every trial is about."""
        assert self._about is not None
        return self._about[1]

    @property
    def event(self) -> BestOfTrials:
        """What the whole tuning costs."""
        price, count = self.price, self.count
        return BestOfTrials(
            float(count.mean),
            count.shape,
            float(price.order),
            price.divergence,
            float(price.order_hat),
            price.divergence_hat,
            self.adjacency.value,
        )

    def epsilon_of(self, settings: Mapping[str, Any]) -> float:
        """At which a candidate is run: it then keeps to the price of every trial."""
        key = self._releases(settings)
        if key not in self._known:
            most = min(2 * self.reference, self.epsilon)
            self._known[key] = _largest(lambda e: self.excess(self._planned(settings, e)), most, 1.0)
        return self._known[key]

    def expect_all_possible(self) -> None:
        """Refuse a space with values that no trial can have, drawn or not: each of a list, and both ends of a range,
        beside the first values of the others."""
        usual = first_of(self.question.space)
        for name, one in self.question.space.items():
            for value in one.values if isinstance(one, Choice) else (one.at(0.0), one.at(1.0)):
                self._planned({**usual, name: value}, self.reference)

    def excess(self, histories: Histories) -> float:
        """What was spent as a share of what a trial may spend, at the order where that is most."""
        orders = (self.price.order, self.price.order_hat)
        allowed = (self.price.divergence, self.price.divergence_hat)
        found = [max(_divergence(counts, order) for counts in histories) for order in orders]
        return max(one / most if most else math.inf * (one > 0) for one, most in zip(found, allowed, strict=True))

    def _releases(self, settings: Mapping[str, Any]) -> object:
        """What tells candidates apart that are charged differently at the same epsilon: releases at a noise multiplier
        of one, which needs no calibration, and the queries beside them."""
        values = trial_values(self.question, settings, self.reference)
        beside = [values.get(name) for name in _QUERIES]
        silent = {name: value for name, value in values.items() if name not in (*_QUERIES, "epsilon")}
        plan = self.question.plan({**silent, "noise_multiplier": 1.0}, self.task)
        if plan.method.first_query is not None:
            return json_hash([dict(settings), beside])  # which has a share of the budget, too
        events = [one.events for one in plan.terms.accounts(plan.noise).values()]
        return plan.method.unit, _alike(events), json_hash(beside)

    def _best(self, histories: Histories) -> TrialPrice:
        curve = np.max([rdp_of(counts) for counts in histories], axis=0)
        return best_price(self.count, RDP_ORDERS, curve, self.delta)

    def _planned(self, settings: Mapping[str, Any], epsilon: float) -> Histories:
        """What a trial with these settings is charged."""
        values = trial_values(self.question, settings, epsilon)
        plan = self.question.plan(values, self.task)
        _expect_fixed(plan, self.question)
        accounts = plan.terms.accounts(plan.noise)
        histories = list({_alike([one.events]): one.events for one in accounts.values()}.values())
        for event in {event for counts in histories for event in counts}:
            found = pricing_of(event)
            if found.refusal is not None or not found.has_rdp or found.unbounded:
                raise UnsupportedMechanismError(
                    f"Expected a method whose releases have a Renyi price, for tuning on private data, found "
                    f"{plan.method.name} ({found.words('cohorts')}): tune on public or simulated data."
                )
        self._expect_about_the_same(plan, histories)
        return histories

    def _expect_about_the_same(self, plan: Plan, histories: Histories) -> None:
        """Refuse candidates that protect somebody else, or are priced for other neighbors: one price for all trials
        would be about neither."""
        about = plan.method.unit, common_adjacency(event for counts in histories for event in counts)
        self._about = self._about or about
        if about != self._about:
            one, other = (f"{unit} ({adjacency.value})" for unit, adjacency in (self._about, about))
            raise UnsupportedMechanismError(
                f"Expected candidates with a guarantee for the same neighbors, which one price can be about, found "
                f"{one} and {other}: tune these apart."
            )


def trial_values(question: Question, settings: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
    """The keys of a private trial: it validates privately, once at the end unless the keys say otherwise."""
    values = question.values_with(settings)
    values |= {"validation": "private", "epsilon": epsilon}
    values.setdefault("evaluate_every", values["rounds"])
    values.setdefault("validation_fraction", question.hold_out)
    return values


def _expect_fixed(plan: Plan, question: Question) -> None:
    """Refuse what may turn out to cost more than planned, which no selection has a price for."""
    if plan.method.noise_schedule is not None:
        raise UnsupportedMechanismError(
            f"Expected a method whose noise is fixed before a trial, for tuning on private data, found "
            f"{plan.method.name}, which chooses it on the way: tune on public or simulated data."
        )
    always = plan.expected == plan.clients
    if plan.method.unit is ProtectedUnit.SAMPLE and not always:
        raise UnsupportedMechanismError(
            "Expected every client in every round where samples are protected, for tuning on private data, found a "
            "cohort that is drawn, so that what a client spends is not known before: use cohort = full."
        )
    expect(plan.terms.copies == 1, "clients that have no sample in common", "clients that overlap", "deal them apart")


def _divergence(counts: Counter[Event], order: float) -> float:
    return float(sum(count * rdp_at(event, (order,))[0] for event, count in counts.items()))


def _alike(histories: Histories) -> object:
    return frozenset(frozenset(counts.items()) for counts in histories)


def _largest(cost: Callable[[float], float], most: float, allowed: float) -> float:
    """The largest epsilon of a trial, to the precision above, whose cost is allowed: found to be so, not assumed."""
    known: dict[float, float] = {}

    def excess(log_epsilon: float) -> float:
        known[log_epsilon] = math.log(max(cost(math.exp(log_epsilon)), 1e-12) / allowed)
        return known[log_epsilon]

    enough = math.log(most)
    while excess(enough) > 0:  # halved step by step: a tiny epsilon takes long to price
        enough -= math.log(2)
        if enough < math.log(most * _LEAST_SHARE):
            raise CloisterError(
                f"Expected a budget that pays for a selection among trials, found that even {most * _LEAST_SHARE:.2g} "
                "for one trial is too much: raise epsilon or delta, expect fewer trials, or tune on public data."
            )
    if len(known) > 1:
        from scipy.optimize import brentq

        brentq(excess, enough, enough + math.log(2), xtol=_PRECISION)
    return max(math.exp(one) for one, over in known.items() if over <= 0)
