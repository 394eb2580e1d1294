"""BLUR and LUS: eq. 2, Lemmas 1 and 2, Theorems 1 and 2 and Corollary 1, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon
from cloister.privacy.events import PoissonGaussian
from cloister.theory import blur_lus, clip_factors, clip_factors_by_round


def test_clip_factors_by_hand():
    """min(1, 0.2/x) is 1, 1, 0.5, 0.25 (zero is not clipped); the mean 11/16, distances 5/16, 5/16, 3/16, 7/16."""
    found = clip_factors([0.0, 0.2, 0.4, 0.8], 0.2)
    assert found.mean == pytest.approx(0.6875)
    assert found.deviation == pytest.approx((5 + 5 + 3 + 7) / 16 / 4)


def test_clip_factors_of_rounds_with_different_cohorts():
    means, deviations = clip_factors_by_round([[1.0], [0.5, 2.0, 4.0]], 1.0)
    assert means.tolist() == pytest.approx([1.0, (1 + 0.5 + 0.25) / 3])
    assert deviations.tolist() == pytest.approx([0.0, (5 / 12 + 1 / 12 + 4 / 12) / 3])


@settings(max_examples=50, deadline=None)
@given(
    norms=st.lists(st.floats(0, 1e6), min_size=1, max_size=20),
    clip=st.floats(1e-3, 1e3),
    scale=st.sampled_from([0.25, 2.0, 8.0]),
)
def test_clip_factors_are_shares_whatever_the_unit(norms, clip, scale):
    found = clip_factors(norms, clip)
    assert 0 < found.mean <= 1
    assert 0 <= found.deviation <= 0.5
    again = clip_factors([scale * norm for norm in norms], scale * clip)
    assert (again.mean, again.deviation) == pytest.approx((found.mean, found.deviation))


@pytest.mark.parametrize("norms", [[], [-1.0], [math.nan], [math.inf]])
def test_norms_that_are_none_are_refused(norms):
    with pytest.raises(CloisterError, match="norm"):
        clip_factors(norms, 1.0)


def test_eq_2_by_hand():
    """Norms 3 and 0.5, clip 1, d = 50: (2^2 + 0)/2/50 = 0.04; sigma^2 S^2/P = 4/100."""
    found = blur_lus.update_error([3.0, 0.5], 1.0, 2.0, 100, 50)
    assert (found.clipping, found.noise) == pytest.approx((0.04, 0.04))
    assert found.total == pytest.approx(0.08)


def test_eq_2_is_what_clipping_and_noise_do():
    """A million coordinates: the mean of their squared noise has a relative deviation of sqrt(2/1e6) = 0.0014, and the
    product with the clip's error, which has mean zero, less. Ten such deviations fail with a chance below 1e-20."""
    draw = np.random.default_rng(7)
    update = draw.normal(size=1_000_000)
    update *= 5.0 / np.linalg.norm(update)
    clip, sigma, clients = 2.0, 3.0, 16
    noisy = update * (clip / 5.0) + draw.normal(size=update.size) * sigma * clip / math.sqrt(clients)
    measured = float(np.mean((noisy - update) ** 2))
    assert measured == pytest.approx(blur_lus.update_error(5.0, clip, sigma, clients, update.size).total, rel=0.014)
    assert measured != pytest.approx(blur_lus.update_error(5.0, clip, sigma, 1, update.size).total, rel=0.5)


def test_the_best_clip_is_the_best_of_many():
    best = blur_lus.best_clip_norm(0.7, 1.5, 40, 300)
    tried = np.linspace(1e-3, 0.7, 7000)
    errors = [blur_lus.update_error(0.7, float(clip), 1.5, 40, 300).total for clip in tried]
    assert tried[int(np.argmin(errors))] == pytest.approx(best, abs=2e-4)


def test_a_smaller_clip_helps_one_term_and_hurts_the_other():
    small, large = (blur_lus.update_error(1.0, clip, 1.0, 10, 100) for clip in (0.1, 0.5))
    assert small.noise < large.noise
    assert small.clipping > large.clipping


def exact_delta(sigma: float, eps: float) -> float:
    """Of the Gaussian mechanism with sensitivity 1 (Balle & Wang 2018)."""
    return norm.cdf(0.5 / sigma - eps * sigma) - math.exp(eps) * norm.cdf(-0.5 / sigma - eps * sigma)


def test_lemma_1_holds_below_1_and_not_at_20():
    for eps in (0.1, 0.5, 0.99):
        assert exact_delta(blur_lus.gaussian_mechanism(eps, 1e-5), eps) < 1e-5
    printed = math.sqrt(2 * math.log(1.25e5)) / 20
    assert exact_delta(printed, 20) == pytest.approx(0.0015, abs=1e-4)
    with pytest.raises(CloisterError, match=r"Expected epsilon < 1, found 20.*cloister.calibrate"):
        blur_lus.gaussian_mechanism(20.0, 1e-5)


def test_lemma_2_is_what_the_steps_add_up_to():
    """Eq. 7, step by step, on random gradients; and the printed weights are not."""
    draw = np.random.default_rng(3)
    gradients = draw.normal(size=(12, 5))
    lr, pull, radius = 0.1, 2.0, 0.4
    place, active = np.zeros(5), []
    for gradient in gradients:
        active.append(bool(np.linalg.norm(place) > radius))
        place = place - lr * (gradient + pull * active[-1] * place)
    assert any(active)
    assert not all(active)
    weights = np.array(blur_lus.discounts(active, lr, pull))
    np.testing.assert_allclose(-lr * weights @ gradients, place, atol=1e-12)
    printed = np.array([(1 - lr * pull) ** step if pulls else 1.0 for step, pulls in enumerate(active)])
    assert np.abs(-lr * printed @ gradients - place).max() > 0.01


def test_lemma_2_refuses_a_pull_beyond_the_learning_rate():
    with pytest.raises(CloisterError, match="blur_lambda < 1 / lr"):
        blur_lus.discounts([True], 0.5, 2.0)


def test_theorem_1_by_hand():
    """2 * 0.04 * sqrt(1000 ln 3400) / 2 = 0.04 * sqrt(8131.53) = 3.607; lambda = 2 * 8.1315 / 2."""
    found = blur_lus.noise_multiplier(2.0, 1 / 3400, 1000, 0.04)
    assert found.noise_multiplier == pytest.approx(0.04 * math.sqrt(8131.5307), rel=1e-7)
    assert found.order == pytest.approx(8.1315307, rel=1e-7)
    assert blur_lus.noise_multiplier(4.0, 1 / 3400, 1000, 0.04).noise_multiplier == found.noise_multiplier / 2


def test_theorem_1_is_enough_where_it_is_proven_and_too_little_at_epsilon_8():
    delta = 1 / 3400
    for target, proven in ((6.0, True), (8.0, False)):
        found = blur_lus.noise_multiplier(target, delta, 1000, 0.04)
        assert found.proven is proven
        cost = epsilon(PoissonGaussian(found.noise_multiplier, 0.04), 1000, delta)
        assert (cost <= target) is proven


def test_the_true_constant_gives_back_the_noise_that_is_needed():
    constant = blur_lus.true_constant(6.0, 1 / 3400, 1000, 0.04)
    sigma = blur_lus.noise_multiplier(6.0, 1 / 3400, 1000, 0.04, constant).noise_multiplier
    assert epsilon(PoissonGaussian(sigma, 0.04), 1000, 1 / 3400) == pytest.approx(6.0, rel=2e-3)


def test_theorem_2_by_hand():
    """T 200, Q 5, eta_l 0.02, eta_g 2, P 10, sigma 1.5, S 0.4, d 300: 1/(2*.02*5*200), (.1)^2, .04/10,
    2*2.25*.16*300/(.1*100)."""
    found = blur_lus.convergence(200, 5, 0.02, 2.0, 10, 1.5, 0.4, 300, alpha_bar=[1.0, 0.5])
    terms = (found.steps, found.drift, found.variance, found.noise)
    assert terms == pytest.approx((0.025, 0.01, 0.004, 21.6))
    assert found.fedavg == pytest.approx(0.039)
    assert found.weighted == pytest.approx(21.639)
    assert found.total == pytest.approx(2 * 21.639)


def test_twice_the_clients_quarter_theorem_2s_noise():
    few, many = (blur_lus.convergence(10, 5, 0.1, 1.0, p, 1.0, 0.1, 100).noise for p in (10, 20))
    assert few == pytest.approx(4 * many)


def test_corollary_1_is_theorem_2_with_theorem_1s_noise():
    """c2 = 1 and c = 1, which O hides: sigma = (P/N) sqrt(T ln(1/delta))/eps and S = eta_l Q."""
    rounds, steps, lr, clients, population, eps, delta = 300, 10, 0.05, 30, 500, 4.0, 1 / 500
    sigma = clients / population * math.sqrt(rounds * math.log(500)) / eps
    whole = blur_lus.convergence(rounds, steps, lr, 1.0, clients, sigma, lr * steps, 1000)
    found = blur_lus.private_convergence(rounds, steps, lr, 1.0, clients, population, eps, delta, 1000, 0.5, 1.0)
    assert found.noise == pytest.approx(whole.noise)
    assert found.fedavg == pytest.approx(whole.fedavg)


def test_corollary_1_refuses_a_clip_that_clips():
    with pytest.raises(CloisterError, match=r"clip_norm >= lr \* local_steps \* gradient_bound = 0.5, found 0.4"):
        blur_lus.private_convergence(300, 10, 0.05, 1.0, 30, 500, 4.0, 1 / 500, 1000, 0.4, 1.0)


def test_the_best_rate_is_half_of_the_least_sum_of_two_terms():
    """1/x + x D is least at x = 1/sqrt(D), and 2 sqrt(D) there."""
    best = blur_lus.best_rate(500, 4.0, 1 / 500, 1000)
    products = np.geomspace(1e-3, 1e3, 20_001)
    sums = 1 / products + products * 1000 * math.log(500) / (500 * 4) ** 2
    assert sums.min() == pytest.approx(2 * best, rel=1e-5)
