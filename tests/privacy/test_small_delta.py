"""A budget is enforced, calibrated and certified at its own delta, however small, and whatever was released."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import cloister as cl
from cloister.errors import BudgetExceededError
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.budgets import Budget
from cloister.privacy.events import DiscreteGaussianSum, Event, FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.renyi_filter import filtered_epsilon
from cloister.runs.folder import RunFolder
from conftest import toy_task

DELTAS = [1e-2, 1e-4, 1e-5, 1e-6, 1e-7, 1e-9, 1e-12]
EVENTS: dict[str, Event] = {
    "full": Gaussian(4.0),
    "poisson": PoissonGaussian(1.0, 0.1),
    "fixed_size": FixedSizeGaussian(4.0, 10, 100),
    "discrete": DiscreteGaussianSum(20.0, 4, 10.0, 64, 0.3),
}
AFFORDABLE = 5


def exact(noise: float, releases: int, delta: float) -> float:
    """Epsilon of Gaussian releases, by the formula of Balle & Wang (2018), which no other program has a part in."""
    shift = math.sqrt(releases) / noise

    def excess(eps: float) -> float:
        tail = math.exp(eps + norm.logcdf(-shift / 2 - eps / shift))
        return float(norm.cdf(shift / 2 - eps / shift)) - tail - delta

    return float(brentq(excess, 0, 1000))


@pytest.mark.parametrize("delta", DELTAS)
def test_what_is_priced_is_what_the_formula_says(delta):
    for releases in (1, 7, 100):
        found = epsilon_of(Gaussian(4.0), releases, delta)
        truth = exact(4.0, releases, delta)
        slack = 1.001 if delta >= 1e-10 else 1.3  # below, Renyi divergences answer
        assert truth * (1 - 1e-6) <= found <= truth * slack


@pytest.mark.parametrize(("unit", "order"), [("client", None), ("sample of client 3", 6)])
@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("name", EVENTS)
def test_a_budget_is_enforced_at_its_own_delta(name, delta, unit, order):
    """So many releases and not one more, also after the ledger was read again, and whoever else has other budgets."""
    event = EVENTS[name]

    def cost(count: int) -> float:
        return epsilon_of(event, count, delta) if order is None else filtered_epsilon(event, count, delta, order)

    between = (cost(AFFORDABLE) + cost(AFFORDABLE + 1)) / 2
    budgets = {unit: Budget(between, delta, order), "somebody else": Budget(1000.0, 0.1)}
    ledger = Ledger.create(None, "test", budgets)
    for round in range(1, AFFORDABLE + 1):
        ledger.charge(unit, event, round=round, repeatable=True)
    assert ledger.refusals({unit: Charge(event)}, round=AFFORDABLE + 1, repeatable=True) == {unit}
    with pytest.raises(BudgetExceededError, match=f"at delta {delta:g}"):
        ledger.charge(unit, event, round=AFFORDABLE + 1, repeatable=True)
    with pytest.raises(BudgetExceededError):
        Ledger.create(None, "test", budgets).charge(unit, event, round=1, repeatable=True, count=AFFORDABLE + 1)


def test_a_budget_read_from_the_disk_keeps_its_delta(tmp_path):
    event, delta = Gaussian(4.0), 1e-9
    budget = Budget((exact(4.0, 5, delta) + exact(4.0, 6, delta)) / 2, delta)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", "test", {"client": budget})
    for round in range(1, 6):
        ledger.close()
        ledger = Ledger.open(tmp_path / "ledger.jsonl")
        assert ledger.budgets == {"client": budget}
        ledger.charge("client", event, round=round, repeatable=True)
    with pytest.raises(BudgetExceededError):
        ledger.charge("client", event, round=6, repeatable=True)
    ledger.close()


SMALL = [1e-4, 1e-7, 1e-9]


@pytest.mark.parametrize("delta", SMALL)
def test_a_run_is_calibrated_stopped_and_certified_at_its_delta(delta, tmp_path):
    """By the exact formula: everyone takes part, so that a run is nothing but Gaussian releases."""
    task, rounds = toy_task(), 5
    settings = {"cohort": cl.full(), "engine": "loop", "delta": delta, "progress": False}

    run = cl.run(cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1), task, rounds=rounds, epsilon=2.0, **settings)
    assert run.stopped is None
    noise = run.certificate.noise_multiplier
    assert exact(noise, rounds, delta) <= 2.0 <= 1.01 * exact(noise, rounds, delta), "the noise is what it takes"
    assert run.certificate.prices[0].delta == delta
    assert exact(noise, rounds, delta) * (1 - 1e-9) <= run.epsilon <= 2.0

    budget = (exact(3.0, 3, delta) + exact(3.0, 4, delta)) / 2
    method = cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=3.0)
    stopped = cl.run(method, task, rounds=9, epsilon=budget, folder=tmp_path / "r", **settings)
    assert len(stopped.history) == 3
    assert f"at delta {delta:g}" in stopped.stopped
    assert exact(3.0, 3, delta) * (1 - 1e-9) <= stopped.epsilon <= budget
    assert RunFolder.open(tmp_path / "r").certificate().epsilon == stopped.epsilon
    spent = [line["epsilon"] for line in stopped.history]
    assert spent == pytest.approx([exact(3.0, count, delta) for count in (1, 2, 3)], rel=1e-3)


@pytest.mark.parametrize("delta", SMALL)
def test_samples_of_every_client_keep_their_budget_at_its_delta(delta):
    """One batch that holds all of a client: its steps are Gaussian releases, of noise that was calibrated for each."""
    task = toy_task(sizes=(4, 3))
    method = cl.methods.pfl(clip_norm=0.5, batch_size=4, local_epochs=2)
    run = cl.run(method, task, rounds=3, epsilon=[1.0, 4.0], delta=delta, engine="loop", progress=False)
    for noise, target in zip(run.certificate.noise_multipliers, (1.0, 4.0), strict=True):
        assert exact(noise, 6, delta) <= target <= 1.01 * exact(noise, 6, delta)
    assert exact(run.certificate.noise_multipliers[1], 6, delta) * (1 - 1e-9) <= run.epsilon <= 4.0
