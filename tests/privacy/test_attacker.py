"""The attacker's best success: tight where the optimum is known, and never below what an attack reaches."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.attacker import PRIORS, PROFILE_DELTAS, guessed, told_apart
from cloister.privacy.events import Gaussian, PoissonGaussian


def profile_of(event, count=1):
    loss = PrivacyLoss()
    loss.add(event, count)
    return [(loss.epsilon(delta), delta) for delta in PROFILE_DELTAS]


@pytest.mark.parametrize(("noise", "count"), [(2.0, 1), (0.7, 1), (5.0, 100), (0.3, 1)])
def test_for_gaussian_noise_it_is_the_optimum_by_neyman_and_pearson(noise, count):
    """The most powerful test between N(0, 1) and N(mu, 1) is a threshold."""
    mu, profile = math.sqrt(count) / noise, profile_of(Gaussian(noise), count)
    for prior in (*PRIORS, 0.9):
        best = norm.cdf(norm.ppf(prior) + mu)
        assert best - 1e-9 <= guessed(profile, prior) <= best + 0.01
    best = norm.cdf(mu / 2)
    assert best - 1e-9 <= told_apart(profile) <= best + 0.01


@pytest.mark.parametrize("prior", [0.01, 0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (1.0, 0.1), (3.0, 0.01), (0.0, 0.2)])
def test_one_epsilon_and_delta_allow_what_a_linear_program_finds(epsilon, delta, prior):
    """The largest P(E) at Q(E) <= prior under both inequalities: solved as a program, without our formula."""
    e = math.exp(epsilon)
    found = linprog(
        [-1.0, 0.0],  # P(E), Q(E)
        A_ub=[[1.0, -e], [e, -1.0]],  # P <= e Q + delta;  1 - Q <= e (1 - P) + delta
        b_ub=[delta, e + delta - 1.0],
        bounds=[(0, 1), (0, prior)],
    )
    assert guessed([(epsilon, delta)], prior) == pytest.approx(max(prior, -found.fun), abs=1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 0.0), (1.0, 1e-5), (1.0, 0.1), (3.0, 0.01), (0.0, 0.2)])
def test_the_worst_mechanism_of_an_epsilon_and_a_delta_reaches_the_bound(epsilon, delta):
    """Four outputs: two that give everything away, with probability delta, and two of randomized response."""
    e = math.exp(epsilon)
    there = np.array([delta, (1 - delta) * e / (1 + e), (1 - delta) / (1 + e), 0.0])
    decisions = itertools.product((0, 1), repeat=4)
    best = max((np.dot(there, say) + 1 - np.dot(there[::-1], say)) / 2 for say in decisions)
    assert told_apart([(epsilon, delta)]) == pytest.approx(best, abs=1e-12)


def test_no_attack_on_a_sampled_mechanism_does_better():
    """Poisson sampling: the likelihood ratio of the mixture, integrated numerically, over every threshold."""
    noise, rate, count = 0.8, 0.3, 1
    x = np.linspace(-12, 14, 400_001)
    out, into = norm.pdf(x, 0, noise), (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
    step, profile = x[1] - x[0], profile_of(PoissonGaussian(noise, rate), count)
    for prior in PRIORS:
        false = 1 - np.cumsum(out) * step  # the ratio grows with x: events are upper tails
        at = np.searchsorted(-false, -prior)
        best = 1 - np.cumsum(into)[at] * step
        assert best - 1e-4 <= guessed(profile, prior) <= best + 0.03
    assert told_apart(profile) >= 0.5 + 0.25 * np.abs(out - into).sum() * step - 1e-6


def test_a_reconstruction_by_maximum_likelihood_stays_below():
    """Ten secrets, each a direction of its own: the guess is the one that the noisy sum points to."""
    random = np.random.default_rng(0)
    for noise in (0.5, 1.0, 3.0):
        draws = random.normal(size=(200_000, 10)) * noise
        draws[:, 0] += 1.0
        right = np.mean(draws.argmax(axis=1) == 0)
        assert 0.1 < right <= guessed(profile_of(Gaussian(noise)), 0.1)


def test_nothing_known_bounds_nothing_and_nothing_released_adds_nothing():
    assert guessed([], 0.1) == told_apart([]) == 1.0
    assert guessed([(math.inf, 1e-5)], 0.1) == told_apart([(math.inf, 1e-5)]) == 1.0
    assert guessed([(0.0, 0.0)], 0.1) == 0.1
    assert guessed([(1e5, 0.0)], 1e-9) == 1.0
