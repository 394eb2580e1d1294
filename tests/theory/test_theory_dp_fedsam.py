"""DP-FedSAM's theorems against numbers worked out by hand, quadrature and exact binomial sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.theory import clip_factors_by_round, dp_fedsam
from cloister.theory.sampled_gaussian import log_moment, log_moment_of_integer_order


def test_theorem_1_by_hand():
    """eta 0.1, K 2, L 3: eta^2 L^2 K = 0.18, K^2 L^2 eta^2 = 0.36; 6 * .25 * .18 * (4.32 + 10) / .64."""
    found = dp_fedsam.sensitivity_of_sam(0.1, 0.5, 2, 3.0)
    assert found == pytest.approx(6 * 0.25 * 0.18 * 14.32 / 0.64)
    assert dp_fedsam.sensitivity_of_sgd(0.1, 2.0, 2, 3.0) == pytest.approx(6 * 0.01 * 4 * 2 / (1 - 0.54))


def test_theorem_1_falls_as_printed():
    """With eta = 1/(L sqrt(KT)) and rho = 1/sqrt(T): 60/T^2 for SAM and 6 sigma^2/(L^2 T) for SGD, whatever K."""
    rounds = 10**6
    for steps in (5, 50):
        lr = 1 / (2.0 * math.sqrt(steps * rounds))
        assert dp_fedsam.sensitivity_of_sam(lr, rounds**-0.5, steps, 2.0) * rounds**2 == pytest.approx(60, rel=1e-3)
        assert dp_fedsam.sensitivity_of_sgd(lr, 1.0, steps, 2.0) * rounds == pytest.approx(6 / 4, rel=1e-3)


def test_theorem_1_refuses_large_steps():
    with pytest.raises(CloisterError, match=r"2 lr\^2 smoothness\^2 local_steps < 1, found 2.*smaller learning rate"):
        dp_fedsam.sensitivity_of_sam(0.1, 0.5, 100, 1.0)
    with pytest.raises(CloisterError, match=r"3 lr\^2"):
        dp_fedsam.sensitivity_of_sgd(0.1, 1.0, 40, 1.0)


def test_lemma_1_by_hand():
    updates = np.array([[0.2, 0.0], [0.0, -0.2], [0.1, 0.1]])
    with_one, without = updates.sum(0) / 3, updates[:-1].sum(0) / 3
    assert np.linalg.norm(with_one - without) <= dp_fedsam.sensitivity_of_mean(0.2, 3) == pytest.approx(0.2 / 3)


@pytest.mark.parametrize("order", [1.3, 2.0, 6.5])
def test_moments_are_the_integral(order):
    rate, sigma = 0.2, 1.1

    def integrand(z: float) -> float:
        density = math.exp(-(z**2) / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        return density * (1 - rate + rate * math.exp((2 * z - 1) / (2 * sigma**2))) ** order

    value, _ = quad(integrand, -15, 25, epsabs=1e-14, limit=400)
    assert log_moment(order, rate, sigma) == pytest.approx(math.log(value), rel=1e-8)


def test_moments_of_whole_orders_and_of_everyone():
    """Without sampling ln E[ratio^a] = (a^2 - a)/(2 sigma^2)."""
    assert log_moment(3.0, 1.0, 2.0) == pytest.approx(6 / 8)
    assert log_moment_of_integer_order(3, 1.0, 2.0) == pytest.approx(6 / 8)
    for order in (2, 9, 30):
        assert log_moment_of_integer_order(order, 0.05, 1.0) == pytest.approx(log_moment(order, 0.05, 1.0), rel=1e-10)


def test_theorem_2_beside_true_prices():
    """The print samples twice, so that a rate of 0.1 is taken for 0.01; the corrected one is what RDP gives."""
    found = dp_fedsam.privacy(200, 50, 500, 0.95, 1 / 500)
    assert found.corrected == pytest.approx(epsilon(PoissonGaussian(0.95, 0.1), 200, 1 / 500, "rdp"), rel=0.03)
    assert found.printed == pytest.approx(epsilon(PoissonGaussian(0.95, 0.01), 200, 1 / 500, "rdp"), rel=0.03)
    assert found.poisson == epsilon(PoissonGaussian(0.95, 0.1), 200, 1 / 500)
    assert found.fixed_size == epsilon(FixedSizeGaussian(0.95, 50, 500), 200, 1 / 500)
    assert found.printed < found.poisson < found.corrected < found.fixed_size


def test_theorem_3_by_hand():
    """T 4, K 9, L 2, f(w) - f* = 3, sigma_l 1, sigma_g 2, sigma 1.5, C 0.4, m 10, d 100, p 0.5:
    2*2*3/6 + 4/(9*16); (sum of alpha-bar * 4 + alpha-tilde * 4)/16; 4 * 2 * 2.25 * .16 * 50 / (100 * 3)."""
    found = dp_fedsam.convergence(
        [1.0, 0.5, 0.5, 1.0], [0.0, 0.25, 0.25, 0.0], 9, 2.0, 3.0, 1.0, 2.0, 1.5, 0.4, 10, 100, 0.5
    )
    assert found.fedsam == pytest.approx(2 + 4 / 144)
    assert found.clipping == pytest.approx((3 * 4 + 0.5 * 4) / 16)
    assert found.noise == pytest.approx(0.48)
    assert found.total == pytest.approx(found.fedsam + found.clipping + found.noise)


def test_theorem_3_takes_what_recorded_norms_give():
    rounds = [np.array([0.1, 0.4]), np.array([0.8, 0.8])]
    means, deviations = clip_factors_by_round(rounds, 0.2)
    found = dp_fedsam.convergence(means, deviations, 1, 1.0, 0.0, 0.0, 1.0, 0.0, 0.2, 2, 10)
    assert found.clipping == pytest.approx((0.75 + 0.25 + 0.25 + 0.0) / 4)


@pytest.mark.parametrize(
    ("change", "term", "falls"),
    [
        ({"clients": 100}, "noise", True),
        ({"keep_fraction": 0.4}, "noise", True),
        ({"clip_norm": 0.4}, "noise", False),
        ({"local_steps": 60}, "fedsam", True),
        ({"alpha_tilde": [0.3] * 50}, "clipping", False),
    ],
)
def test_theorem_3_moves_as_the_paper_says(change, term, falls):
    usual = dict.fromkeys(("smoothness", "gap", "local_deviation", "global_deviation", "noise_multiplier"), 1.0)
    usual |= {"alpha_bar": [0.5] * 50, "alpha_tilde": [0.1] * 50, "local_steps": 30, "clip_norm": 0.2}
    usual |= {"clients": 50, "parameters": 1000}
    before, after = (getattr(dp_fedsam.convergence(**arguments), term) for arguments in (usual, {**usual, **change}))
    assert (after < before) is falls


def test_theorem_3_refuses_factors_that_are_none():
    with pytest.raises(CloisterError, match="one alpha_tilde for every alpha_bar"):
        dp_fedsam.convergence([0.5, 0.5], [0.1], 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 10, 10)
    with pytest.raises(CloisterError, match="alpha_bar between 0 and 1"):
        dp_fedsam.convergence([0.0], [0.1], 1, 1.0, 1.0, 1.0, 1.0, 1.0, 0.2, 10, 10)


def test_theorem_4_by_hand():
    """sigma C d = 2 * 0.5 * 10 = 10, L rho = 1, delta = e^-2: the exponent is 2/10 + 2/100; s = 2 * 10/25, so that the
    best t = 2/s = 2.5 lies within 1 and 100, where the minimum is delta itself."""
    found = dp_fedsam.round_privacy(100, 5, 50, 2.0, 0.5, 10, 2.0, 0.5, math.exp(-2))
    assert found.epsilon == pytest.approx(math.log(0.9 + 0.1 * math.exp(0.22)))
    assert found.delta == pytest.approx(0.1 * math.exp(-2))


def test_theorem_4_moves_as_remark_5_says():
    def at(clients: int = 50, noise: float = 1.0, rho: float = 0.5) -> float:
        return dp_fedsam.round_privacy(100, clients, 10_000, noise, 0.2, 1000, 1.0, rho, 1e-3).epsilon

    assert at(noise=2.0) < at() < at(clients=100)
    assert at(rho=0.1) < at()


def test_theorem_5_by_hand():
    """T 100, eps 0.01, slack e^-2: sqrt(400) * 0.01 + 100 * 0.01 * tanh(0.005)."""
    found = dp_fedsam.generalization(dp_fedsam.RoundPrivacy(0.01, 1e-9), 100, 10**6, math.exp(-2))
    composed = 0.2 + math.tanh(0.005)
    assert found.epsilon == pytest.approx(composed)
    assert found.gap == pytest.approx(4 * composed)
    miss = 2 * math.exp(-1.7 * composed) * found.delta / composed * math.log(2 / composed)
    assert found.probability == pytest.approx(1 - miss)
    assert found.vacuous is (found.probability <= 0 or found.gap >= 1)


@pytest.mark.parametrize(("eps", "rounds", "slack"), [(0.1, 100, 1e-2), (0.02, 200, 1e-3), (0.3, 50, 0.1)])
def test_the_composed_delta_is_above_the_exact_one(eps, rounds, slack):
    """Randomized response is the worst of all rounds that are eps-DP (Kairouz, Oh & Viswanath 2015); the sign in print
    would be below it."""
    found = dp_fedsam.generalization(dp_fedsam.RoundPrivacy(eps, 1e-12), rounds, 10**9, slack)
    chance = math.exp(eps) / (1 + math.exp(eps))
    least = math.ceil((rounds + found.epsilon / eps) / 2)
    times = np.arange(least, rounds + 1)
    exact = float(
        (binom.pmf(times, rounds, chance) - math.exp(found.epsilon) * binom.pmf(times, rounds, 1 - chance)).sum()
    )
    assert exact <= found.delta <= slack * 1.05
    if eps >= 0.1:
        assert found.delta * math.exp(-(found.epsilon + rounds * eps)) < exact


def test_theorem_5_refuses_what_it_does_not_cover():
    with pytest.raises(CloisterError, match=r"at least [\d,]+ samples, found 100"):
        dp_fedsam.generalization(dp_fedsam.RoundPrivacy(0.01, 1e-9), 100, 100, 0.1)
    with pytest.raises(CloisterError, match="eps' below rounds"):
        dp_fedsam.generalization(dp_fedsam.RoundPrivacy(0.01, 1e-9), 5, 10**9, 1e-3)


def test_a_smaller_loss_of_privacy_generalizes_better():
    large, small = (
        dp_fedsam.generalization(dp_fedsam.RoundPrivacy(eps, 1e-9), 200, 10**9, 1e-2).gap for eps in (0.01, 0.005)
    )
    assert small < large
