"""Renyi filters against dp-accounting, and what they let through."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import BudgetExceededError, CloisterError, UnsupportedMechanismError
from cloister.privacy.budgets import Budget
from cloister.privacy.events import FixedSizeGaussian, Gaussian, NonPrivate, NoOp, PoissonGaussian, Unsupported
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.renyi_filter import FilteredLoss, best_order, epsilon_at, filtered_epsilon, room_at

EVENTS = [PoissonGaussian(1.3, 0.05), PoissonGaussian(0.7, 1.0), Gaussian(2.0), FixedSizeGaussian(3.0, 5, 60)]


def divergence(event, order: int) -> float:
    """One release at one order, by dp-accounting's own events."""
    if isinstance(event, FixedSizeGaussian):
        seen = dp.GaussianDpEvent(event.noise_multiplier / 2)  # the sum moves by twice the bound
        made = dp.SampledWithoutReplacementDpEvent(event.population, event.size, seen)
        accountant = RdpAccountant([order], dp.NeighboringRelation.REPLACE_ONE)
    else:
        made = dp.PoissonSampledDpEvent(
            getattr(event, "sampling_rate", 1.0), dp.GaussianDpEvent(event.noise_multiplier)
        )
        accountant = RdpAccountant([order])
    return float(accountant.compose(made)._rdp[0])


@pytest.mark.parametrize("event", EVENTS, ids=str)
@pytest.mark.parametrize("order", [2, 7, 32])
def test_a_filter_adds_up_the_divergences_of_one_order(event, order):
    loss = FilteredLoss(order)
    for count in (3, 4):
        loss.add(event, count)
    loss.add(NoOp())
    assert loss.spent == pytest.approx(7 * divergence(event, order), rel=1e-9)
    assert loss.epsilon(1e-5) == pytest.approx(compute_epsilon([order], [loss.spent], 1e-5)[0], rel=1e-12)


@pytest.mark.parametrize(("sampling_rate", "noise"), [(0.05, 1.3), (0.2, 3.0), (1.0, 0.7)])
def test_poisson_batches_at_order_2_cost_what_the_formula_says(sampling_rate, noise):
    loss = FilteredLoss(2)
    loss.add(PoissonGaussian(noise, sampling_rate), 5)
    assert loss.spent == pytest.approx(5 * math.log1p(sampling_rate**2 * math.expm1(noise**-2)), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 256), st.floats(0.2, 20), st.sampled_from([1e-3, 1e-5, 1e-7]))
def test_what_an_epsilon_has_room_for_is_that_epsilon(order, epsilon, delta):
    room = room_at(order, epsilon, delta)
    if room > 1e-3:
        assert epsilon_at(order, room, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("count", [10, 1000])
def test_the_order_is_the_cheapest_of_all_for_what_is_planned(count):
    event = PoissonGaussian(1.3, 0.05)
    costs = {a: compute_epsilon([a], [count * divergence(event, a)], 1e-5)[0] for a in range(2, 65)}
    order = best_order(event, count, 1e-5)
    assert filtered_epsilon(event, count, 1e-5) == pytest.approx(min(costs.values()), rel=1e-9)
    assert order == min(costs, key=costs.__getitem__)


def test_what_has_no_price_is_refused_and_what_has_no_noise_is_infinite():
    loss = FilteredLoss(8)
    with pytest.raises(UnsupportedMechanismError):
        loss.add(Unsupported("nobody knows"))
    for event in (NonPrivate(), PoissonGaussian(0.0, 0.5)):
        bare = FilteredLoss(8)
        bare.add(event)
        assert math.isinf(bare.epsilon(1e-5))
    with pytest.raises(CloisterError, match="order"):
        Budget(1.0, 1e-5, order=1)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.5, 3.0), st.integers(1, 30)), min_size=5, max_size=30),
    st.integers(2, 40),
    st.floats(0.5, 8.0),
)
def test_no_charge_takes_the_sum_beyond_its_room(story, order, epsilon):
    """Whatever noise is chosen on the way: what would exceed is refused, what is cheaper may still go on."""
    ledger = Ledger.create(None, "test", {"me": Budget(epsilon, 1e-5, order)})
    spent, room = 0.0, room_at(order, epsilon, 1e-5)
    for number, (noise, count) in enumerate(story, start=1):
        event = PoissonGaussian(noise, 0.1)
        after = spent + count * divergence(event, order)
        fits = compute_epsilon([order], [after], 1e-5)[0] <= epsilon
        assert fits == (after <= room * (1 + 1e-12)) or after < 1e-9
        refused = ledger.charge_each({"me": Charge(event, count)}, round=number, repeatable=True)
        assert bool(refused) is not fits
        spent = after if fits else spent
    assert ledger.epsilon("me", 1e-5) <= epsilon


def test_a_filter_outlives_its_process(tmp_path):
    path, event = tmp_path / "ledger.jsonl", PoissonGaussian(1.3, 0.05)
    ledger = Ledger.create(path, "test", {"me": Budget(4.0, 1e-5, 6)})
    ledger.charge("me", event, round=1, count=40, repeatable=True)
    ledger.close()
    again = Ledger.open(path)
    assert again.budgets["me"].order == 6
    assert again.epsilon("me", 1e-5) == ledger.epsilon("me", 1e-5)
    with pytest.raises(BudgetExceededError, match="for me"):
        again.charge("me", event, round=2, count=4000, repeatable=True)
