"""DP-FedSAM (Shi et al., CVPR 2023, and the journal version): Lemma 1 and Theorems 1 to 5.

Notation: M clients of which m take part in a round (q = m/M), T rounds, K local steps, clip C, noise multiplier sigma,
d parameters of which a share p is kept, SAM's radius rho, gradients that are L-Lipschitz.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from cloister.errors import (
    expect,
    expect_count,
    expect_delta,
    expect_not_negative,
    expect_positive,
    expect_probability,
)
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.theory.sampled_gaussian import log_moment
from cloister.theory.update_norms import expect_factors

ORDERS = tuple(1 + place / 20 for place in range(1, 1261))
"""The Renyi orders that Theorem 2 is minimized over."""


def sensitivity_of_sam(lr: float, rho: float, local_steps: int, smoothness: float) -> float:
    """Theorem 1: the expected squared distance of a client's updates, before the clip, on data that differ in a sample.

        6 eta^2 rho^2 K L^2 (12 K^2 L^2 eta^2 + 10) / (1 - 2 eta^2 L^2 K)

    Not a guarantee, and not what privacy rests on: the clip fixes the sensitivity (`sensitivity_of_mean`), and a
    smaller distance here buys no smaller epsilon. Besides, the proof takes the squared norm of a sum of K vectors for
    the sum of their squared norms, which is too small by a factor of up to K. With eta = 1/(L sqrt(KT)) and rho =
    1/sqrt(T) it is O(1/T^2).

    >>> round(sensitivity_of_sam(lr=0.01, rho=0.5, local_steps=10, smoothness=1.0), 6)
    0.01521
    """
    square = _square_step(lr, local_steps, smoothness)
    expect_not_negative("rho", rho, "give SAM's radius")
    limit = "2 lr^2 smoothness^2 local_steps < 1"
    expect(2 * square < 1, limit, 2 * square, "Theorem 1 needs a smaller learning rate")
    return 6 * rho**2 * square * (12 * local_steps * square + 10) / (1 - 2 * square)


def sensitivity_of_sgd(lr: float, gradient_deviation: float, local_steps: int, smoothness: float) -> float:
    """The same for SGD, to which Theorem 1 compares: 6 eta^2 sigma_l^2 K / (1 - 3 eta^2 K L^2).

    Not a guarantee, for the same reason. With eta = 1/(L sqrt(KT)) it is O(sigma_l^2 / (L^2 T)); what is printed has
    one more K below, which the formula does not.

    >>> round(sensitivity_of_sgd(lr=0.01, gradient_deviation=1.0, local_steps=10, smoothness=1.0), 6)
    0.006018
    """
    square = _square_step(lr, local_steps, smoothness)
    expect_not_negative("gradient_deviation", gradient_deviation, "give the deviation of a stochastic gradient")
    limit = "3 lr^2 smoothness^2 local_steps < 1"
    expect(3 * square < 1, limit, 3 * square, "Theorem 1 needs a smaller learning rate")
    return 6 * lr**2 * gradient_deviation**2 * local_steps / (1 - 3 * square)


def _square_step(lr: float, local_steps: int, smoothness: float) -> float:
    expect_positive("lr", lr, "give the local learning rate")
    expect_count("local_steps", local_steps, "give the number of local steps")
    expect_positive("smoothness", smoothness, "give L, the Lipschitz constant of gradients")
    return lr**2 * smoothness**2 * local_steps


def sensitivity_of_mean(clip_norm: float, clients: int) -> float:
    """Lemma 1: a client more or less moves the mean of m clipped updates by C/m at most.

    A guarantee where the mean is a sum over a declared m. Under a cohort of exactly m clients, as in Algorithm 1, one
    client takes another's place, and the mean moves by up to 2 C/m.

    >>> sensitivity_of_mean(0.2, 50)
    0.004
    """
    expect_positive("clip_norm", clip_norm, "give the clip")
    expect_count("clients", clients, "give the number of clients in a round")
    return clip_norm / clients


@dataclass(frozen=True)
class Prices:
    """What T rounds cost: as a theorem prints it, as it was meant, and truly."""

    printed: float
    """With the printed densities, which sample twice: a rate of q^2."""
    corrected: float
    """The same formula with N(1, sigma^2) where it belongs: an upper bound for Poisson cohorts."""
    poisson: float
    """The price of Poisson cohorts of the same rate, by the PLD accountant."""
    fixed_size: float
    """The price of the algorithm as printed: cohorts of exactly m of M clients, one replaced by another."""


def privacy(rounds: int, clients: int, population: int, noise_multiplier: float, delta: float) -> Prices:
    """Theorem 2: epsilon after T rounds, from the Renyi divergence of the sampled Gaussian, least over its order.

        epsilon = rdp(a) + ((a - 1) ln(1 - 1/a) - ln a - ln delta) / (a - 1)
        rdp(a)  = T/(a - 1) * ln E over z ~ mu0 of (1 - q + q mu1(z)/mu0(z))^a

    Not a guarantee as printed: mu1 is the mixture q N(1, sigma) + (1 - q) N(0, sigma), which puts the sampling in
    twice. `corrected` is a guarantee for Poisson cohorts, `poisson` a closer one. Algorithm 1 samples exactly m
    clients, which neither covers: `fixed_size` does.

    >>> found = privacy(rounds=200, clients=50, population=500, noise_multiplier=0.95, delta=1 / 500)
    >>> [round(one, 1) for one in (found.printed, found.corrected, found.poisson, found.fixed_size)]
    [0.7, 8.5, 7.3, 43.2]
    """
    expect_count("rounds", rounds, "give the number of rounds")
    expect_count("clients", clients, "give the number of clients in a round")
    expect_count("population", population, "give the number of all clients", least=clients)
    expect_positive("noise_multiplier", noise_multiplier, "give the noise's scale over the clip")
    expect_delta(delta)
    rate = clients / population

    def by_renyi(sampling_rate: float) -> float:
        return min(
            (rounds * log_moment(order, sampling_rate, noise_multiplier) - math.log(order) - math.log(delta))
            / (order - 1)
            + math.log1p(-1 / order)
            for order in ORDERS
        )

    return Prices(
        by_renyi(rate**2),
        by_renyi(rate),
        epsilon_of(PoissonGaussian(noise_multiplier, rate), rounds, delta),
        epsilon_of(FixedSizeGaussian(noise_multiplier, clients, population), rounds, delta),
    )


@dataclass(frozen=True)
class Convergence:
    """The terms of a bound on the mean over rounds of alpha-bar * ||gradient||^2; their constants are unknown."""

    fedsam: float
    """What FedSAM has without privacy."""
    clipping: float
    noise: float

    @property
    def total(self) -> float:
        return self.fedsam + self.clipping + self.noise


def convergence(
    alpha_bar: ArrayLike,
    alpha_tilde: ArrayLike,
    local_steps: int,
    smoothness: float,
    gap: float,
    local_deviation: float,
    global_deviation: float,
    noise_multiplier: float,
    clip_norm: float,
    clients: int,
    parameters: int,
    keep_fraction: float = 1.0,
) -> Convergence:
    """Theorem 3: how small the gradient becomes, in the mean over rounds weighted by alpha-bar.

        (1/T) sum_t E[alpha-bar_t ||grad f(w_t)||^2]
            <= O(2 L (f(w_1) - f*) / sqrt(KT) + L^2 sigma_l^2 / (K T^2))
             + O(sum_t (alpha-bar_t sigma_g^2 + alpha-tilde_t L^2) / T^2)
             + O(L^2 sqrt(T) sigma^2 C^2 p d / (m^2 sqrt(K)))

    An order of magnitude: it holds for eta = O(1/(L sqrt(KT))) and rho = O(1/sqrt(T)), under gradients that are
    L-Lipschitz, of bounded variance (sigma_l within, sigma_g between clients) and bounded by B. A term of B^2/sqrt(KT)
    of the proof's last inequality is left out in print, and so here. `gap` is f(w_1) - f*; T is the length of
    `alpha_bar` and `alpha_tilde`, which `clip_factors_by_round` makes of recorded norms.

    >>> found = convergence([0.5] * 100, [0.1] * 100, 4, 1.0, 2.0, 1.0, 1.0, 1.0, 0.2, 50, 1000)
    >>> [round(term, 6) for term in (found.fedsam, found.clipping, found.noise)]
    [0.200025, 0.006, 0.08]
    """
    means = expect_factors("alpha_bar", alpha_bar, zero=False)
    deviations = expect_factors("alpha_tilde", alpha_tilde, zero=True)
    same = "one alpha_tilde for every alpha_bar"
    expect(means.size == deviations.size, same, (means.size, deviations.size), "give both for every round")
    expect_count("local_steps", local_steps, "give the number of local steps")
    expect_positive("smoothness", smoothness, "give L, the Lipschitz constant of gradients")
    for name, value in {"gap": gap, "local_deviation": local_deviation, "global_deviation": global_deviation}.items():
        expect_not_negative(name, value, "a bound of the assumptions")
    expect_not_negative("noise_multiplier", noise_multiplier, "give the noise's scale over the clip")
    expect_positive("clip_norm", clip_norm, "give the clip")
    expect_count("clients", clients, "give the number of clients in a round")
    expect_count("parameters", parameters, "give the number of the model's parameters")
    expect_probability("keep_fraction", keep_fraction, "1 keeps everything")
    rounds = means.size
    fedsam = 2 * smoothness * gap / math.sqrt(local_steps * rounds)
    fedsam += (smoothness * local_deviation / rounds) ** 2 / local_steps
    clipping = float((means * global_deviation**2 + deviations * smoothness**2).sum()) / rounds**2
    spread = (noise_multiplier * clip_norm / clients) ** 2 * keep_fraction * parameters
    return Convergence(fedsam, clipping, smoothness**2 * math.sqrt(rounds / local_steps) * spread)


@dataclass(frozen=True)
class RoundPrivacy:
    """What Theorem 4 prints for one round."""

    epsilon: float
    delta: float


def round_privacy(
    rounds: int,
    clients: int,
    samples: int,
    noise_multiplier: float,
    clip_norm: float,
    parameters: int,
    smoothness: float,
    rho: float,
    delta: float,
) -> RoundPrivacy:
    """Theorem 4: (epsilon, delta m/N) of one round towards one of N samples, from which Theorem 5 follows.

        epsilon = ln((N - m)/N + (m/N) exp(L rho sqrt(2 ln(1/delta)) / (sigma C d) + 2 (L rho / (sigma C d))^2))
        delta   = min over 1 <= t <= T of exp(-sqrt(2 ln(1/delta0)) t s + t^2 s^2 / 2),  s = 2 L rho sigma C d / m^2

    Not a guarantee, in spite of its form: nothing here may be called a price (`privacy` has that). The noise's
    deviation in one direction is taken for d times what it is, the difference of two samples' gradients is bounded by 2
    L rho, which L-Lipschitz gradients do not give, and half of the first exponent got lost between (38) and (40). delta
    is the given delta0 wherever the best t lies between 1 and T.

    >>> round_privacy(200, 50, 88_800, 0.95, 0.2, 1_000, 1.0, 0.5, 1e-3)  # doctest: +ELLIPSIS
    RoundPrivacy(epsilon=5.54...e-06, delta=5.63...e-07)
    """
    expect_count("rounds", rounds, "give the number of rounds")
    expect_count("clients", clients, "give the number of clients in a round")
    expect_count("samples", samples, "give the number of all samples", least=clients)
    for name, value in {
        "noise_multiplier": noise_multiplier,
        "clip_norm": clip_norm,
        "smoothness": smoothness,
        "rho": rho,
    }.items():
        expect_positive(name, value, "Theorem 4 has it in a denominator, or bounds nothing without it")
    expect_count("parameters", parameters, "give the number of the model's parameters")
    expect_delta(delta)
    share = clients / samples
    wide = noise_multiplier * clip_norm * parameters
    exponent = smoothness * rho * math.sqrt(2 * math.log(1 / delta)) / wide + 2 * (smoothness * rho / wide) ** 2
    spread = 2 * smoothness * rho * wide / clients**2
    reach = math.sqrt(2 * math.log(1 / delta))
    best = min(max(reach / spread, 1.0), float(rounds))
    tail = min(1.0, math.exp(-reach * best * spread + (best * spread) ** 2 / 2))
    return RoundPrivacy(math.log1p(share * math.expm1(exponent)), share * tail)


@dataclass(frozen=True)
class Generalization:
    """With probability above `probability`, training and test risk differ by less than `gap`."""

    gap: float
    probability: float
    epsilon: float
    delta: float

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing: risks are within [0, 1] of each other anyway."""
        return self.gap >= 1 or self.probability <= 0


def generalization(one_round: RoundPrivacy, rounds: int, samples: int, slack: float) -> Generalization:
    """Theorem 5: P[|training risk - test risk| < 4 eps'] > 1 - (2 e^(-1.7 eps') delta' / eps') ln(2 / eps').

        eps' = sqrt(2 T ln(1/slack)) eps + T eps (e^eps - 1)/(e^eps + 1)

    over T rounds that are (eps, delta)-DP each (`round_privacy`), for a loss within [0, 1] and N >= (2/eps'^2)
    ln(16 / (e^(-eps') delta')) samples. `slack` is the theorem's arbitrary constant. The theorem is that of He, Wang &
    Tao (2021). A guarantee for rounds that truly are (eps, delta)-DP; with what Theorem 4 prints, it is not. delta'
    is their composition (Lemma 5). The text at hand is damaged here; constants are read as 4, 2, 1.7 and 16.

    >>> found = generalization(RoundPrivacy(0.005, 1e-9), rounds=100, samples=100_000, slack=1e-2)
    >>> round(found.gap, 3), round(found.probability, 3)
    (0.612, 0.76)
    """
    expect_count("rounds", rounds, "give the number of rounds")
    expect_count("samples", samples, "give the number of all samples")
    expect_delta(slack)
    eps, delta = one_round.epsilon, one_round.delta
    expect_positive("epsilon of a round", eps, "give that of one round")
    composed = math.sqrt(2 * rounds * math.log(1 / slack)) * eps + rounds * eps * math.tanh(eps / 2)
    remedy = "the composition says nothing for so few rounds, so take more of them, or more slack"
    expect(composed < rounds * eps, "eps' below rounds * epsilon", (composed, rounds * eps), remedy)
    total = _composed_delta(eps, delta, rounds, composed)
    least = 2 / composed**2 * math.log(16 * math.exp(composed) / total)
    expect(samples >= least, f"at least {math.ceil(least):,} samples", samples, "Theorem 5 needs more of them")
    miss = 2 * math.exp(-1.7 * composed) * total / composed * math.log(2 / composed)
    # Beyond eps' = 2 the logarithm is negative, and the statement vacuous: risks never differ by more than 1.
    return Generalization(4 * composed, 1 - max(0.0, miss), composed, total)


def _composed_delta(eps: float, delta: float, rounds: int, composed: float) -> float:
    """delta' of Lemma 5: the chance that losses of +-eps add up to more than eps', by Chernoff, and the rounds' deltas.

    The print begins with e^(-(eps' + T eps)/2). Chernoff's bound has a plus there; with the minus, delta' would be
    below the exact value (for eps = 0.1, T = 100 and slack 0.01: 1.2e-8, where 2.3e-4 is exact).
    """
    whole = rounds * eps
    tail = (composed + whole) / 2
    tail += rounds * (math.log(2 * whole / (whole - composed)) - math.log1p(math.exp(eps)))
    tail -= (composed + whole) / (2 * eps) * math.log((whole + composed) / (whole - composed))
    low, high = delta / (1 + math.exp(eps)), math.exp(eps) * delta / (1 + math.exp(eps))
    steps = math.ceil(composed / eps)
    one, other = rounds * math.log1p(-low), steps * math.log1p(-high) + (rounds - steps) * math.log1p(-low)
    return math.exp(tail) - math.exp(one) + 2 - math.exp(other)
