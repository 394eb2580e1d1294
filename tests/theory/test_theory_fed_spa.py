"""Fed-SPA's theorems against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from cloister.errors import CloisterError
from cloister.privacy.description import ClaimDescription
from cloister.privacy.published_claims import fed_spa as claimed
from cloister.theory import fed_spa
from cloister.theory.fed_spa import Batches, Problem

BATCHES = Batches(batch_size=10, samples=600, steps=1350)


def test_theorem_1_by_hand():
    """q = 1/300, 1350 steps, B 2, p 1/4, G 3, sigma 4: 7 q^2 I tau a p G^2/(B sigma)^2 at a = 8, and ln(1000)/7."""
    batches = Batches(2, 600, 1350, 0.25, 3.0)
    by_hand = 7 * 1350 * 8 * 0.25 * 9 / (300**2 * 4 * 16) + math.log(1000) / 7
    assert fed_spa.privacy_at(8.0, batches, 4.0, 1e-3) == pytest.approx(by_hand)


def test_theorem_1_over_all_orders_is_the_published_claim():
    noise = 2.0
    multiplier = BATCHES.noise_multiplier(noise)
    about = ClaimDescription("any", noise_multiplier=multiplier, sampling_rate=1 / 60)
    other, _ = claimed(about, [(multiplier, 1350)], 1e-3)
    found = fed_spa.privacy(BATCHES, noise, 1e-3)
    assert found.printed == pytest.approx(other)
    assert found.printed == pytest.approx(
        min(fed_spa._unchecked(a, BATCHES, noise, 1e-3) for a in np.arange(1.01, 500, 0.01)), rel=1e-4
    )


def test_the_largest_order_solves_its_own_inequality():
    batches, noise = Batches(2, 600, 1350), 2.5
    spread = batches.noise_multiplier(noise) ** 2 / 2
    by_root = brentq(lambda a: 2 / 3 * spread * math.log(300 / (a * (1 + spread))) + 1 - a, 1.0, 22.0)
    assert fed_spa.largest_order(batches, noise) == pytest.approx(by_root)
    with pytest.raises(CloisterError, match=r"an order of at most 8\.759, found 9\.0: Theorem 1 holds no further"):
        fed_spa.privacy_at(9.0, batches, noise, 1e-3)


def test_theorem_1_refuses_too_little_noise():
    with pytest.raises(CloisterError, match=r">= 0\.7, found 0\.5"):
        fed_spa.privacy_at(2.0, BATCHES, 0.1, 1e-3)


def test_the_noise_for_an_epsilon_gives_it_back():
    for keep in (1.0, 0.25):
        batches = Batches(10, 600, 1350, keep, 2.0)
        assert fed_spa.privacy(batches, fed_spa.noise_for(1.0, 1e-3, batches), 1e-3).printed == pytest.approx(1.0)


def test_noise_grows_with_the_root_of_the_share():
    """Theorem 1 has p/sigma^2; the text says that sigma is proportional to p."""
    noises = [fed_spa.noise_for(1.0, 1e-3, Batches(10, 600, 1350, keep)) for keep in (0.16, 0.64)]
    assert noises[1] / noises[0] == pytest.approx(2.0)


def test_what_was_published_as_epsilon_1():
    """Without its range the formula says 1.0; within it, no order below 14 is certified; the noise is worth more."""
    found = fed_spa.privacy(BATCHES, fed_spa.noise_for(1.0, 1e-3, BATCHES), 1e-3)
    assert found.within_range > 14
    assert found.fixed_size == pytest.approx(0.33, abs=0.01)
    assert found.poisson == pytest.approx(0.13, abs=0.01)


def test_private_variance_by_hand():
    """(4 + 1)/0.2 + 0.2 * 500 * 0.09 = 25 + 9."""
    assert fed_spa.private_variance(2.0, 1.0, 0.2, 500, 0.3) == pytest.approx(34)


def test_the_variance_of_masked_noise_is_not_the_printed_one():
    """Eq. 5 on 20,000 draws: the noise is scaled by 1/p, as the gradient is. The mean of 20,000 sums of 10 squares has
    a relative deviation of sqrt(2/200,000) = 0.0032; the printed value is smaller by p^2 = 1/16."""
    draw = np.random.default_rng(2)
    size, keep, sigma = 40, 0.25, 0.5
    kept = draw.permuted(np.tile(np.arange(size) < size * keep, (20_000, 1)), axis=1)
    noise = kept * draw.normal(size=kept.shape) * sigma / keep
    measured = float((noise**2).sum(1).mean())
    by_eq_5 = fed_spa.masked_variance(1.0, 0.0, keep, size, sigma) - 1 / keep
    printed = fed_spa.private_variance(1.0, 0.0, keep, size, sigma) - 1 / keep
    assert measured == pytest.approx(by_eq_5, rel=0.03)
    assert printed == pytest.approx(by_eq_5 / 16)


def test_the_best_share_is_the_best_of_many():
    shares = np.linspace(0.01, 1, 10_000)
    values = [fed_spa.private_variance(1.0, 0.5, float(p), 2000, 0.05 * math.sqrt(p)) for p in shares]
    assert fed_spa.best_keep_fraction(1.0, 0.5, 2000, 0.05) == pytest.approx(shares[int(np.argmin(values))], abs=2e-4)
    assert fed_spa.best_keep_fraction(1.0, 0.5, 2000, 1e-6) == 1.0


def test_the_largest_learning_rate_by_hand():
    """tau 5. L 2: 1/80. L 1, kappa .01, d 400, G 2: .01*20/2/40 = .0025 beside .01*sqrt(20/2)/40 = .00079."""
    assert fed_spa.largest_lr(Problem(2.0, 1.0, 10**6, 1.0), 5, 1.0, 1.0) == pytest.approx(1 / 80)
    narrow = fed_spa.largest_lr(Problem(1.0, 2.0, 400, 1.0), 5, 1.0, 0.01)
    assert narrow == pytest.approx(0.01 * math.sqrt(10) / 40)
    assert fed_spa.largest_lr(Problem(1.0, 2.0, 400, 1.0), 5, 0.01, 0.01) == pytest.approx(0.0025)


def test_theorem_2_by_hand():
    """L 2, G 3, d 900 (G/sqrt d = .1), f - f* = 4, zeta_l^2 1, zeta_g^2 .5; n 8, T 50, tau 5, eta_l .01, eta_g .5,
    kappa 1, p .5, sigma .1, beta_2 .81. zeta_dp^2 = 10/.5 + .5*900*.01 = 24.5; + 6*5*.5 = 39.5; the step is
    .9*.01*5*.1 + 1 = 1.0045; eta_g L/2 + G/sqrt d = .6."""
    problem = Problem(2.0, 3.0, 900, 4.0, 1.0, 0.5)
    found = fed_spa.convergence(problem, 8, 50, 5, 0.01, 0.5, 1.0, 0.5, 0.1, 0.81)
    step = 1.0045
    assert found.start == pytest.approx(step * 4 / (0.01 * 0.5 * 5 * 50))
    assert found.drift == pytest.approx(step * 5 * 1e-4 * 5 * 4 / 2 * 39.5)
    assert found.variance == pytest.approx(step * 0.6 * 4 * 0.01 / 8 * 24.5)
    assert found.adaptive == pytest.approx(step * 0.6 * 20 * 1e-6 * 25 * 4 * 39.5)
    assert found.total == pytest.approx(found.start + found.drift + found.variance + found.adaptive)


def test_theorem_2_refuses_a_learning_rate_above_its_limit():
    with pytest.raises(CloisterError, match=r"a learning rate of at most 0\.0125, found 0\.013: Theorem 2 holds"):
        fed_spa.convergence(Problem(2.0, 1.0, 10**6, 1.0), 8, 50, 5, 0.013, 1.0, 1.0, 0.5, 0.1)


def test_lemma_3_by_hand():
    """L 2, G 3, f - f* = 4, zeta_g^2 .5; n 9, tau 4, T 100 (sqrt(n tau T) = 60), zeta_dp^2 12, + 6*4*.5 = 24."""
    found = fed_spa.rate(Problem(2.0, 3.0, 900, 4.0, 1.0, 0.5), 9, 100, 4, 12.0)
    assert found.start == pytest.approx(4 / 60)
    assert found.variance == pytest.approx(2 * 12 * 2 / (9 * 60))
    assert found.drift == pytest.approx(24 / (3 * 400))
    assert found.adaptive == pytest.approx(24 * 2 * 3 / (9 * 2 * 1000))


def test_many_rounds_leave_the_rate_that_the_paper_names():
    """O(1/sqrt(n tau T)) is the dominant term."""
    problem = Problem(1.0, 1.0, 100, 1.0, 1.0, 1.0)
    few, many = (fed_spa.rate(problem, 10, t, 5, 3.0).total for t in (10**8, 4 * 10**8))
    assert few / many == pytest.approx(2.0, rel=1e-3)
