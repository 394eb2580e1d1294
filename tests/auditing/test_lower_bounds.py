"""Lower bounds against closed forms and scipy; that they cover what they promise, and that point estimates do not."""

from __future__ import annotations

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import integrate, stats

from cloister.auditing import one_run
from cloister.auditing.bounds import (
    at_least,
    at_most,
    best_threshold,
    from_one_run,
    from_rates,
    gdp_delta,
    gdp_epsilon,
    one_run_p_value,
)
from cloister.auditing.families import epsilon_of, mu_of
from cloister.auditing.one_run import gaussians_epsilon
from cloister.privacy.events import Gaussian, PoissonGaussian


@pytest.mark.parametrize(("hits", "of"), [(0, 10), (3, 10), (10, 10), (17, 400), (399, 400)])
def test_intervals_are_those_of_scipy(hits, of):
    for miss in (0.05, 1e-4):
        one_sided = 1 - 2 * miss
        known = stats.binomtest(hits, of).proportion_ci(one_sided, "exact")
        assert at_most(hits, of, miss) == pytest.approx(known.high, abs=1e-12)
        assert at_least(hits, of, miss) == pytest.approx(known.low, abs=1e-12)


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_a_gaussian_curve_is_that_of_two_normal_densities(mu):
    for epsilon in (0.1, 1.0, 4.0):
        found, _ = integrate.quad(
            lambda x, e=epsilon: max(stats.norm.pdf(x, mu) - math.exp(e) * stats.norm.pdf(x), 0), -40, 40, limit=500
        )
        assert gdp_delta(mu, epsilon) == pytest.approx(found, rel=1e-4, abs=1e-9)
    for delta in (1e-3, 1e-5):
        assert gdp_delta(mu, gdp_epsilon(mu, delta)) == pytest.approx(delta, rel=1e-6)
        assert gaussians_epsilon(0.0, 2.0, 2.0 * mu, 2.0, delta) == pytest.approx(gdp_epsilon(mu, delta), abs=2e-3)


def test_a_gaussian_curve_is_that_of_another_accountant():
    curve = pld.from_gaussian_mechanism(1 / 1.3, value_discretization_interval=1e-4)
    assert gdp_epsilon(1.3, 1e-5) == pytest.approx(curve.get_epsilon_for_delta(1e-5), abs=2e-3)


@pytest.mark.parametrize(("z", "rate"), [(0.8, 1.0), (1.5, 0.3)])
def test_the_best_accuracy_of_a_release_gives_back_what_it_costs(z, rate):
    """The total variation by quadrature; the noise that was charged is another, and does not matter."""
    tv, _ = integrate.quad(
        lambda x: abs(rate * (stats.norm.pdf(x, 1, z) - stats.norm.pdf(x, 0, z))) / 2, -30, 30, limit=500
    )
    event = Gaussian(3 * z) if rate == 1 else PoissonGaussian(3 * z, rate)
    curve = pld.from_gaussian_mechanism(z, sampling_prob=rate, value_discretization_interval=1e-4)
    known = curve.get_epsilon_for_delta(1e-5)
    found = epsilon_of((1 + tv) / 2, {event: 1}, 1e-5)
    assert known * 0.99 - 0.01 < found < known + 0.003
    if rate == 1:
        assert mu_of((1 + tv) / 2) == pytest.approx(1 / z, rel=1e-6)


def test_rates_are_bounded_in_both_directions():
    assert from_rates(0, 1000, 500, 1000, 0.0, 0.05) == pytest.approx(
        math.log(at_least(500, 1000, 0.025) / at_most(0, 1000, 0.025))
    )
    assert from_rates(500, 1000, 1000, 1000, 0.0, 0.05) == pytest.approx(from_rates(0, 1000, 500, 1000, 0.0, 0.05))
    assert from_rates(500, 1000, 490, 1000, 0.0, 0.05) == 0


def test_no_canary_is_guessed_about_twice(monkeypatch):
    """23 of them, all of whose scores tell: the one in the middle is either in or out."""
    inside = torch.arange(23) % 2 == 0
    monkeypatch.setattr(one_run, "_play", lambda *given: one_run.Scores(inside.double(), inside))
    found = one_run.one_run(SimpleNamespace(delta=0.0), None, None, 23, 0.95, 0, None)
    assert found.guesses <= found.trials == 23
    assert found.right == found.guesses


def test_a_p_value_of_one_run_is_that_of_the_theorem():
    """Without delta it is a binomial tail; with it, the largest mean of the terms below, by brute force."""
    m, r, v, epsilon, delta = 40, 30, 25, 0.7, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    terms = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    tail = sum(terms[v:])
    assert one_run_p_value(m, r, v, epsilon, 0.0) == pytest.approx(tail)
    worst = max(sum(terms[v - i : v]) / i for i in range(1, v + 1))
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(tail + 2 * m * delta * worst)
    found = from_one_run(m, r, v, delta, 0.05)
    assert one_run_p_value(m, r, v, found, delta) == pytest.approx(0.05, abs=1e-6)


COVERED = 4000


def _too_often(above: int) -> bool:
    """Whether so many of `COVERED` bounds are above the truth that 1 in 20 is refuted beyond doubt."""
    return stats.binom.sf(above - 1, COVERED, 0.05) < 1e-9


def test_bounds_hold_as_often_as_they_say_and_point_estimates_do_not():
    random = np.random.default_rng(0)
    each, mu, delta = 500, 1.0, 1e-5
    hits = random.binomial(each, stats.norm.cdf(mu / 2), COVERED)
    silent = random.binomial(each, stats.norm.cdf(mu / 2), COVERED)
    right = hits + silent
    truth = gdp_epsilon(mu, delta)
    bounds = {int(n): epsilon_of(at_least(int(n), 2 * each, 0.05), {Gaussian(1.0): 1}, delta) for n in set(right)}
    points = {int(n): epsilon_of(int(n) / (2 * each), {Gaussian(1.0): 1}, delta) for n in set(right)}
    assert not _too_often(sum(bounds[int(n)] > truth for n in right))
    assert sum(bounds[int(n)] > truth for n in right) > COVERED / 100, "and are not wider than they need be"
    assert _too_often(sum(points[int(n)] > truth for n in right))


def test_guesses_that_are_better_in_one_world_are_covered_as_well():
    """Their mean chance is that of the best test; its two halves are far apart."""
    random = np.random.default_rng(1)
    each = 300
    p, q = 0.99, 0.45
    right = random.binomial(each, p, COVERED) + random.binomial(each, q, COVERED)
    assert not _too_often(sum(at_least(int(n), 2 * each, 0.05) > (p + q) / 2 for n in right))


@pytest.mark.parametrize("tuned", [True, False])
def test_rates_at_a_threshold_of_other_trials_hold_and_at_one_of_their_own_do_not(tuned):
    """Scores that say nothing at all: epsilon is zero."""
    random = np.random.default_rng(2)
    runs, each, above = 400, 60, 0

    @cache
    def worth(alarms, hits):
        return from_rates(alarms, each, hits, each, 0.0, 0.2)

    for _ in range(runs):
        negative, positive = random.normal(size=each), random.normal(size=each)
        other = (random.normal(size=each), random.normal(size=each)) if tuned else (negative, positive)
        threshold = best_threshold(*other, worth)
        above += worth(int((negative > threshold).sum()), int((positive > threshold).sum())) > 0
    chance = stats.binom.sf(above - 1, runs, 0.2)
    assert chance > 1e-9 if tuned else above > 0.05 * runs


def test_the_theorem_of_one_run_covers_randomized_response():
    random = np.random.default_rng(3)
    m, epsilon = 100, 1.0
    right = random.binomial(m, 1 / (1 + math.exp(-epsilon)), COVERED)
    bounds = {int(n): from_one_run(m, m, int(n), 0.0, 0.05) for n in set(right)}
    assert not _too_often(sum(bounds[int(n)] > epsilon for n in right))
    points = {int(n): math.log(n / (m - n)) for n in set(right)}
    assert _too_often(sum(points[int(n)] > epsilon for n in right))
