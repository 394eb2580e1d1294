"""What a step costs a node, by the terms and its own rows; and what a whole run will cost it, before it agrees."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from cloister.core import Method, Samples
from cloister.deploy.halves import asked
from cloister.deploy.halves.prepared import Prepared, prepare
from cloister.deploy.halves.schedule import steps_of
from cloister.deploy.halves.shares import is_secret_sum
from cloister.deploy.halves.steps import UPDATE, VALIDATION, Step
from cloister.deploy.terms.terms import Terms
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Charge
from cloister.privacy.unit import ProtectedUnit, sample_account


def account_of(side: Prepared, client: int) -> str:
    """The account that a node's charges are for, as the library calls it."""
    return side.fed.unit if side.fed.unit is ProtectedUnit.CLIENT else sample_account(client)


def cost_of(side: Prepared, client: int, step: Step, noise_scale: float = 1.0) -> Charge | None:
    """What a step costs a client that takes part where its samples are protected; or any client, where clients are.

    One event pays for a cycle of a cyclic cohort, in the client's own turn: whoever came late, or was told of some
    rounds only, pays for what it answers.
    """
    fed = side.fed
    if step.what != UPDATE:
        held_out = side.held_out
        people = fed.population if step.what != VALIDATION or held_out is None else held_out
        return asked.charge_of(side, step, account_of(side, client), people.counts.tolist())
    if fed.unit is ProtectedUnit.CLIENT:
        return Charge(fed.event) if client in turn_of(side, step.round) else None
    return fed.charges([client], noise_scale, step.round).get(sample_account(client))


def turn_of(side: Prepared, round: int) -> list[int]:
    """Who may be asked in a round: everybody, but where turns are public."""
    cohort, clients = side.fed.cohort, side.fed.population.clients
    if cohort.name != "cyclic":
        return list(range(clients))
    return [int(client) for client in cohort.sample(side.public_streams, round, clients)]


Trusted = Literal["nobody", "nodes", "server", "everybody"]


@dataclass(frozen=True)
class PlannedCost:
    """What a run costs one node, if it takes part in every step that it may be asked for."""

    unit: ProtectedUnit
    delta: float | None
    after: Mapping[int, float]
    """Epsilon after some rounds, the first and the last among them. Infinite where nothing is protected."""
    budget: Budget | None
    """What the terms let it spend at most; beyond that, a node refuses."""
    trusted: Trusted = "server"
    """Who has to be trusted with what leaves this node."""
    follows: bool = False
    """Whether noise follows what was released: then a round may cost more than is planned here, within the budget."""

    @property
    def first(self) -> float:
        """Epsilon after the first round."""
        return self.after[min(self.after)]

    @property
    def last(self) -> float:
        """Epsilon after the last round, if all of them are run."""
        return self.after[max(self.after)]

    @property
    def epsilon(self) -> float:
        """That of the whole run, at most."""
        most = self.last
        return most if self.budget is None else self.budget.epsilon if self.follows else min(most, self.budget.epsilon)


def planned_cost(terms: Terms, rows: int | None, node: str | None = None, public: Samples | None = None) -> PlannedCost:
    """What the whole run costs a node with so many rows, before it agrees; no row is looked at.

    Without `rows`, those that the terms declare are taken, or any number where clients are protected.
    """
    client = 0 if node is None else terms.federation.client_of(node)
    sizes = terms.federation.sizes
    count = rows if rows is not None else 100 if sizes is None else sizes[client]
    blank = terms.samples.blank(max(count, 1))
    if terms.public is not None and public is None:
        public = terms.samples.blank(64)
    side = prepare(terms, client, blank, public)
    delta = terms.values.get("delta")
    after = dict(_after(side, client, delta))
    budget = side.budgets.get(account_of(side, client))
    return PlannedCost(
        side.fed.unit, delta, after, budget, _trusted(side.fed.method), side.fed.method.noise_schedule is not None
    )


def _trusted(method: Method) -> Trusted:
    """Who must be trusted, by a (bound) method."""
    if method.mechanism.place == "nowhere" or not method.mechanism.noise_multiplier:
        return "everybody"
    if is_secret_sum(method):
        return "nodes"
    return "server" if method.mechanism.place == "central" else "nobody"


def _after(side: Prepared, client: int, delta: float | None) -> Iterator[tuple[int, float]]:
    """Epsilon after the first round, the last, and some in between."""
    rounds = side.request.rounds
    shown = {1, rounds, *range(0, rounds, -(-rounds // 10))}
    noiseless = side.fed.method.mechanism.place == "nowhere" or not side.fed.method.mechanism.noise_multiplier
    loss, steps = PrivacyLoss(growing=True), steps_of(side)
    for place, step in enumerate(steps):
        charge = None if noiseless else cost_of(side, client, step)
        if charge is not None:
            loss.add(charge.event, charge.count)
        last = place + 1 == len(steps) or steps[place + 1].round != step.round
        if last and step.round in shown and step.round:
            yield step.round, math.inf if noiseless or delta is None else loss.epsilon(delta)
