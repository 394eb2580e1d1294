"""Epsilons against published figures, closed forms, enumeration and an independent accountant."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import norm

from cloister.errors import CloisterError, UnsupportedMechanismError
from cloister.privacy.accountant import PrivacyLoss, epsilon
from cloister.privacy.events import FixedSizeGaussian, Gaussian, NonPrivate, PoissonGaussian, Unsupported
from cloister.privacy.pricing import pricing_of


@pytest.mark.parametrize(
    ("event", "count", "delta", "expected", "tolerance"),
    [
        (PoissonGaussian(0.95, 0.1), 300, 1 / 500, 9.37, 0.005),
        (PoissonGaussian(1.46, 0.04), 1000, 1 / 3400, 3.53, 0.005),
        (PoissonGaussian(0.96, 64 / 6000), 1880, 1e-5, 2.92, 0.005),
        (FixedSizeGaussian(2.38, 136, 3400), 1000, 1 / 3400, 6.1, 0.05),
        (FixedSizeGaussian(1.46, 136, 3400), 1000, 1 / 3400, 17.4, 0.05),
        (FixedSizeGaussian(0.95, 50, 500), 300, 1 / 500, 57.8, 0.05),
    ],
)
def test_golden_epsilons_by_pld(event, count, delta, expected, tolerance):
    assert epsilon(event, count, delta) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(
    ("event", "count", "delta", "expected"),
    [
        (FixedSizeGaussian(2.38, 136, 3400), 1000, 1 / 3400, 13.2),
        (PoissonGaussian(0.95, 0.1), 300, 1 / 500, 10.8),
    ],
)
def test_golden_epsilons_by_rdp(event, count, delta, expected):
    assert epsilon(event, count, delta, "rdp") == pytest.approx(expected, abs=0.1)


def gaussian_epsilon(shift: float, delta: float) -> float:
    """The exact epsilon of the Gaussian mechanism (Balle & Wang 2018), by bisection on its delta."""

    def delta_at(eps: float) -> float:
        return norm.cdf(shift / 2 - eps / shift) - math.exp(eps) * norm.cdf(-shift / 2 - eps / shift)

    low, high = 0.0, 200.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("noise", [0.8, 2.0, 11.0])
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_everyone_is_the_gaussian_mechanism_exactly(noise, count, delta):
    exact = gaussian_epsilon(math.sqrt(count) / noise, delta)
    found = epsilon(Gaussian(noise), count, delta)
    assert exact - 1e-6 <= found <= exact * 1.001 + 1e-4
    assert found <= epsilon(Gaussian(noise), count, delta, "rdp")


def test_a_fixed_cohort_of_everybody_pays_for_a_shift_of_twice_the_clip():
    exact = gaussian_epsilon(2 * math.sqrt(10) / 5.0, 1e-5)
    found = epsilon(FixedSizeGaussian(5.0, 20, 20), 10, 1e-5)
    assert exact - 1e-6 <= found <= exact * 1.001


def mixture_delta(means_p: list[float], means_q: list[float], noise: float, eps: float) -> float:
    """The hockey-stick divergence of two equal-weight Gaussian mixtures, by numerical integration."""
    x = np.linspace(-12 * noise - 5, 12 * noise + 5, 200_001)
    p = np.mean([norm.pdf(x, mean, noise) for mean in means_p], axis=0)
    q = np.mean([norm.pdf(x, mean, noise) for mean in means_q], axis=0)
    return float(trapezoid(np.maximum(p - math.exp(eps) * q, 0), x))


@pytest.mark.parametrize("noise", [0.7, 1.5])
@pytest.mark.parametrize("others", [(0, 0, 0, 0), (1, 1, 1, 1), (-1, 1, 0, 1)])
def test_the_strict_profile_covers_every_enumerated_fixed_size_release(noise, others):
    """5 clients, 2 a round, one replaced: all 10 cohorts are enumerated, for several neighbors."""
    for mine, yours in [(1, -1), (1, 0), (0.5, -1)]:
        sums = [[sum(pair) for pair in itertools.combinations((first, *others), 2)] for first in (mine, yours)]
        for delta in (1e-2, 1e-4):
            certified = epsilon(FixedSizeGaussian(noise, 2, 5), 1, delta)
            assert mixture_delta(sums[0], sums[1], noise, certified) <= delta * 1.001
            assert mixture_delta(sums[1], sums[0], noise, certified) <= delta * 1.001


def test_the_strict_profile_is_tight_in_one_step_for_one_neighbor():
    certified = epsilon(FixedSizeGaussian(1.5, 2, 5), 1, 1e-3)
    sums = [[sum(pair) for pair in itertools.combinations((first, 1, 1, 1, 1), 2)] for first in (-1, 1)]
    attained = max(mixture_delta(a, b, 1.5, certified * 0.9) for a, b in (sums, sums[::-1]))
    assert attained > 1e-3, "a tenth less epsilon would be a lie for this pair"


@pytest.mark.parametrize("noise", [0.98, 1.46, 2.38])
def test_strict_lies_between_the_known_lower_bound_and_wang_rdp(noise):
    strict = epsilon(FixedSizeGaussian(noise, 136, 3400), 1000, 1 / 3400)
    attained_by_some_data = epsilon(PoissonGaussian(noise / 2, 0.04), 1000, 1 / 3400)
    assert attained_by_some_data < strict < epsilon(FixedSizeGaussian(noise, 136, 3400), 1000, 1 / 3400, "rdp")


def test_poisson_covers_both_directions_by_integration():
    noise, sampling_rate = 0.8, 0.3
    x = np.linspace(-12, 12, 400_001)
    with_client = (1 - sampling_rate) * norm.pdf(x, 0, noise) + sampling_rate * norm.pdf(x, 1, noise)
    without = norm.pdf(x, 0, noise)
    for delta in (1e-2, 1e-4):
        certified = epsilon(PoissonGaussian(noise, sampling_rate), 1, delta)
        for p, q in ((with_client, without), (without, with_client)):
            assert trapezoid(np.maximum(p - math.exp(certified) * q, 0), x) <= delta * 1.001


def test_one_by_one_equals_all_at_once():
    loss = PrivacyLoss()
    for _ in range(25):
        loss.add(PoissonGaussian(1.1, 0.2))
    assert loss.epsilon(1e-4) == pytest.approx(epsilon(PoissonGaussian(1.1, 0.2), 25, 1e-4), rel=1e-6)


@pytest.mark.parametrize("event", [PoissonGaussian(1.1, 0.1), Gaussian(5.0), FixedSizeGaussian(3.0, 5, 50)], ids=str)
def test_several_releases_after_others_count_each(event):
    """A ledger asks after every charge, and a charge may be of several releases."""
    loss = PrivacyLoss(growing=True)
    for count in (3, 10, 1, 6):
        loss.add(event, count)
        loss.epsilon(1e-5)
    assert loss.epsilon(1e-5) == pytest.approx(epsilon(event, 20, 1e-5), rel=1e-6)


def test_mixed_noise_composes_in_any_order():
    first, second = PoissonGaussian(4.0, 0.01), PoissonGaussian(1.0, 0.2)
    one, other = PrivacyLoss(), PrivacyLoss()
    for event in (first, second, first):
        one.add(event)
    for event in (second, first, first):
        other.add(event)
    assert one.epsilon(1e-4) == pytest.approx(other.epsilon(1e-4), rel=1e-4)
    assert one.epsilon(1e-4) > epsilon(second, 1, 1e-4)


@settings(max_examples=15, deadline=None)
@given(noise=st.floats(0.6, 8), sampling_rate=st.floats(0.01, 1), count=st.integers(1, 50), delta=st.floats(1e-8, 1e-2))
def test_more_noise_fewer_rounds_and_larger_delta_never_cost_more(noise, sampling_rate, count, delta):
    context = epsilon(PoissonGaussian(noise, sampling_rate), count, delta)
    slack = 1 + 1e-3
    assert epsilon(PoissonGaussian(noise * 1.1, sampling_rate), count, delta) <= context * slack
    assert epsilon(PoissonGaussian(noise, sampling_rate), count, min(2 * delta, 0.5)) <= context * slack
    assert context <= epsilon(PoissonGaussian(noise, sampling_rate), count + 1, delta) * slack


def test_no_noise_costs_infinity_and_nothing_costs_nothing():
    assert epsilon(NonPrivate(), 1, 1e-5) == math.inf
    assert epsilon(Gaussian(0.0), 1, 1e-5) == math.inf
    assert PrivacyLoss().epsilon(1e-5) == 0.0
    loss = PrivacyLoss()
    loss.add(Gaussian(5.0))
    loss.add(NonPrivate())
    assert loss.epsilon(1e-5) == math.inf


def test_a_tiny_delta_is_answered_by_rdp():
    assert epsilon(Gaussian(5.0), 1, 1e-12) == epsilon(Gaussian(5.0), 1, 1e-12, "rdp")


def test_what_has_no_price_is_refused():
    with pytest.raises(UnsupportedMechanismError, match="public round number"):
        PrivacyLoss().add(Unsupported("cohorts follow from the public round number"))
    loss = PrivacyLoss()
    loss.add(PoissonGaussian(1.0, 0.1))
    with pytest.raises(UnsupportedMechanismError, match="one way of drawing cohorts"):
        loss.add(FixedSizeGaussian(1.0, 5, 50))


@pytest.mark.parametrize("delta", [0, 1, -1e-5, math.nan, "1e-5"])
def test_delta_is_a_probability(delta):
    with pytest.raises(CloisterError, match="0 < delta < 1"):
        epsilon(Gaussian(1.0), 1, delta)


def test_extreme_requests_are_answered_on_a_grid_that_fits():
    """Each of these would take a hundred million points on the finest grid."""
    rare = epsilon(FixedSizeGaussian(0.05, 1, 10**9), 1, 1e-8)
    assert 0 <= rare < math.inf
    endless = PoissonGaussian(1.0, 0.5)
    assert epsilon(endless, 10**7, 1e-5) == epsilon(endless, 10**7, 1e-5, "rdp")


def test_a_coarser_grid_only_ever_costs_more():
    fine = epsilon(PoissonGaussian(5.0, 0.01), 500, 1e-5)
    coarse = pricing_of(PoissonGaussian(5.0, 0.01)).pld(1e-3).self_compose(500).get_epsilon_for_delta(1e-5)
    assert fine <= coarse


@pytest.mark.parametrize("event", [PoissonGaussian(1.1, 0.2), Gaussian(9.0), FixedSizeGaussian(2.0, 5, 100)], ids=str)
def test_a_certified_epsilon_is_at_least_that_of_the_library(event, monkeypatch):
    loss = PrivacyLoss()
    loss.add(event, 40)
    ours, certified = loss.epsilon(1e-5), loss.certified(1e-5)
    assert ours <= certified <= ours * (1 + 1e-6)
    monkeypatch.setattr(PrivacyLoss, "epsilon", lambda self, delta: 0.5 * ours)  # as if our composition were wrong
    assert loss.certified(1e-5) == pytest.approx(ours, rel=1e-6)
