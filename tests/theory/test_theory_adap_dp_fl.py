"""Adap DP-FL's Theorem 1 against whole-number arithmetic, the claim of certificates and dp-accounting."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import CloisterError
from cloister.privacy.description import ClaimDescription
from cloister.privacy.published_claims import adap_dp_fl as claimed
from cloister.theory import adap_dp_fl
from cloister.theory.claims import mnist_schedule


def by_hand(schedule: list[float], rate: float, delta: float, order: int) -> float:
    """Eq. 10 with its logarithm, term by term, in fifty digits."""
    getcontext().prec = 50
    q, total = Decimal(rate), Decimal(0)
    for sigma in schedule:
        moment = sum(
            math.comb(order, i) * (1 - q) ** (order - i) * q**i * (Decimal(i * i - i) / (2 * Decimal(sigma) ** 2)).exp()
            for i in range(order + 1)
        )
        total += moment.ln()
    return float((total + (1 / Decimal(delta)).ln()) / (order - 1))


def test_theorem_1_by_hand():
    schedule = [1.5, 1.2, 1.2, 0.9]
    found = adap_dp_fl.privacy(schedule, 0.1, 1e-3)
    every = {order: by_hand(schedule, 0.1, 1e-3, order) for order in range(2, 65)}
    assert found.epsilon == pytest.approx(min(every.values()))
    assert every[found.order] == min(every.values())


def test_one_step_for_everyone_by_hand():
    """q = 1: a/(2 sigma^2) + ln(1/delta)/(a - 1), least over whole a: sigma 2, delta e^-8 gives a = 9: 9/8 + 1."""
    found = adap_dp_fl.privacy([2.0], 1.0, math.exp(-8))
    assert (found.order, found.epsilon) == (9, pytest.approx(2.125))


def test_theorem_1_is_the_claim_of_certificates():
    about = ClaimDescription("any", noise_multiplier=6.0, sampling_rate=0.013)
    other, _ = claimed(about, [(6.0, 1000), (3.0, 500)], 1e-5)
    assert adap_dp_fl.privacy([6.0] * 1000 + [3.0] * 500, 0.013, 1e-5).epsilon == pytest.approx(other)


def test_theorem_1_is_what_dp_accounting_finds_at_its_orders():
    """Its divergences, converted as the paper does."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    orders = list(range(2, 65))
    accountant = RdpAccountant(orders)
    for sigma, count in ((4.0, 300), (2.5, 200)):
        accountant.compose(PoissonSampledDpEvent(0.013, GaussianDpEvent(sigma)), count)
    converted = [rdp + math.log(1e5) / (a - 1) for a, rdp in zip(orders, accountant._rdp, strict=True)]
    found = adap_dp_fl.privacy([4.0] * 300 + [2.5] * 200, 0.013, 1e-5)
    assert found.epsilon == pytest.approx(min(converted), rel=1e-6)


def test_the_true_price_is_lower_without_the_query_and_higher_with_it():
    schedule = [3.0] * 300 + [2.0] * 300
    theorem = adap_dp_fl.privacy(schedule, 0.013, 1e-5).epsilon
    without = adap_dp_fl.true_price(schedule, 0.013, 1e-5, threshold_query=False)
    asked = adap_dp_fl.true_price(schedule, 0.013, 1e-5)
    assert without < theorem
    assert without < asked
    halved = [sigma / math.sqrt(2) for sigma in schedule]
    assert asked == pytest.approx(adap_dp_fl.true_price(halved, 0.013, 1e-5, threshold_query=False))


@settings(max_examples=20, deadline=None)
@given(schedule=st.lists(st.sampled_from([0.8, 1.5, 3.0, 6.0]), min_size=2, max_size=8), rate=st.floats(0.01, 0.5))
def test_order_does_not_count_and_more_noise_fewer_steps_and_rarer_samples_cost_less(schedule, rate):
    cost = adap_dp_fl.privacy(schedule, rate, 1e-5).epsilon
    assert adap_dp_fl.privacy(schedule[::-1], rate, 1e-5).epsilon == pytest.approx(cost)
    assert adap_dp_fl.privacy([2 * sigma for sigma in schedule], rate, 1e-5).epsilon < cost
    assert adap_dp_fl.privacy(schedule[:-1], rate, 1e-5).epsilon < cost
    assert adap_dp_fl.privacy(schedule, rate / 2, 1e-5).epsilon < cost


def test_the_schedule_counts_and_not_its_start():
    """Noise that falls costs more than its first value would."""
    assert adap_dp_fl.privacy(mnist_schedule(100), 0.013, 1e-5).epsilon > (
        adap_dp_fl.privacy([6.0] * 1200, 0.013, 1e-5).epsilon
    )


def test_the_rounds_of_mnist_are_those_that_theorem_1_allows():
    assert adap_dp_fl.privacy(mnist_schedule(1251), 0.013, 1e-5).epsilon <= 2.0
    assert adap_dp_fl.privacy(mnist_schedule(1252), 0.013, 1e-5).epsilon > 2.0


def test_noise_decays_after_the_rounds_in_which_the_loss_had_fallen():
    falls = [False, True, True, False, True]
    assert adap_dp_fl.decayed(8.0, 0.5, falls) == [8.0, 8.0, 4.0, 2.0, 2.0]
    assert adap_dp_fl.decayed(8.0, 0.5, []) == []


def test_what_the_theorem_does_not_cover_is_refused():
    assert adap_dp_fl.sampling_rate(78, 126) == pytest.approx(78 / 126)
    for wrong in ([], [0.0], [-1.0]):
        with pytest.raises(CloisterError, match=r"step|noise_multipliers > 0"):
            adap_dp_fl.privacy(wrong, 0.1, 1e-5)
    with pytest.raises(CloisterError, match="0 < decay < 1, found 1"):
        adap_dp_fl.decayed(1.0, 1.0, [True])
    with pytest.raises(CloisterError, match="samples"):
        adap_dp_fl.sampling_rate(78, 77)
