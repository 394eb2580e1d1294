"""Charges of a node, and mistakes in them that an audit has to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cloister.deploy.halves import costs, node_half
from cloister.engine import Loop
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import sample_account
from cloister.round import run_round
from cloister.runs.statistics import statistics
from deploy.halves.federations import FEDAVG, PFL, SIZES, Toy, quick_first, ready_of, terms_of

QUERY = {"standardize": 0.2, "epsilon": 40.0, "noise_multiplier": 1.1, "allow_large_delta": True}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "clients": ({**FEDAVG, **QUERY}, {}),
    "samples": ({**PFL, **QUERY}, {"sizes": list(SIZES)}),
    "unequal rounds": ({**PFL, **QUERY, "local_epochs": [1, 3, 2]}, {"sizes": list(SIZES)}),
}


def simulated_charges(kind: str) -> dict[str, dict[tuple[int, str], Charge]]:
    """What a simulation's ledger says, by account and step; of clients, also where nobody was drawn."""
    values, federation = KINDS[kind]
    ready = ready_of(terms_of(values, **federation))
    ledger, w, state = Ledger.create(None, "test", {}), ready.w, ready.fed.method.init(ready.w)
    statistics(ready, ledger)
    for number in range(1, 4):
        w, state, *_ = run_round(ready.fed, ledger, Loop(), number, w, state)
    found: dict[str, dict[tuple[int, str], Charge]] = {}
    for entry in ledger.entries:
        found.setdefault(entry.unit, {})[entry.round, entry.what] = Charge(entry.event, entry.count)
    return found


def audit(kind: str) -> None:
    """Every node pays for every step what the simulation says that the step costs it."""
    values, federation = KINDS[kind]
    toy, wanted = Toy(terms_of(values, **federation)), simulated_charges(kind)
    while (step := toy.server.next_step()) is not None:
        offer = toy.server.offer(step, (0, 1, 2, 3))
        for node in toy.nodes:
            account = "client" if kind == "clients" else sample_account(node.client)
            given = None if kind == "clients" else offer  # not asked, and it pays all the same
            paid = node.charges(step, given)
            assert paid == wanted[account][step.round, step.what], f"node {node.client} pays for {step}"
            assert node.unit == account
        toy.step()


@pytest.mark.parametrize("kind", quick_first(KINDS))
def test_without_a_mistake_there_is_no_alarm(kind):
    audit(kind)


def test_in_every_cycle_a_node_pays_for_its_own_turn():
    cyclic = {key: value for key, value in FEDAVG.items() if key != "sampling_rate"}
    values = {**cyclic, "cohort": "cyclic", "clients_per_round": 2, "rounds": 5}
    toy = Toy(terms_of(values))
    paid = [[step.round for step in node.steps if node.charges(step, None) is not None] for node in toy.nodes]
    assert paid == [[1, 3, 5], [1, 3, 5], [2, 4], [2, 4]]


def only_when_asked(real: Any) -> Any:
    return lambda self, step, offer: None if offer is None else real(self, step, offer)


def test_a_node_that_pays_only_when_it_is_asked_is_caught(monkeypatch):
    monkeypatch.setattr(node_half.NodeHalf, "charges", only_when_asked(node_half.NodeHalf.charges))
    with pytest.raises(AssertionError, match="pays for"):
        audit("clients")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["samples", "unequal rounds"])
def test_a_step_that_is_not_counted_is_caught(monkeypatch, kind):
    real = costs.cost_of

    def one_step(*given: Any) -> Any:
        found = real(*given)
        return found if found is None else replace(found, count=1)

    monkeypatch.setattr(node_half, "cost_of", one_step)
    with pytest.raises(AssertionError, match="pays for"):
        audit(kind)


@pytest.mark.parametrize("kind", quick_first(["clients", "samples"]))
def test_a_query_that_is_free_is_caught(monkeypatch, kind):
    monkeypatch.setattr(costs.asked, "charge_of", lambda *given: None)
    with pytest.raises(AssertionError, match="pays for statistics"):
        audit(kind)


@pytest.mark.slow
def test_the_price_of_the_first_round_for_all_is_caught(monkeypatch):
    real = costs.cost_of

    def first(side: Any, client: int, step: Any, *scale: float) -> Any:
        return real(side, client, replace(step, round=min(step.round, 1)), *scale)

    monkeypatch.setattr(node_half, "cost_of", first)
    with pytest.raises(AssertionError, match="pays for"):
        audit("unequal rounds")
