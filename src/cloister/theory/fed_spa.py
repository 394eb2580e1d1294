"""Fed-SPA (Hu, Gong & Guo, IJCAI 2021): Theorems 1 and 2, Lemma 3.

Notation: n agents with m samples each, batches of B (q = B/m), tau local steps in a round, a share p = k/d of d
coordinates is active, sigma is the ABSOLUTE deviation of the noise on the mean gradient of a batch, every coordinate of
a sample's gradient is within G/sqrt(d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloister.errors import (
    expect,
    expect_count,
    expect_delta,
    expect_epsilon,
    expect_not_negative,
    expect_positive,
    expect_probability,
    expect_share,
)
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian


@dataclass(frozen=True)
class Batches:
    """What privacy depends on: how batches are drawn, how often, and what is sent of a gradient."""

    batch_size: int
    samples: int
    steps: int
    """I_i * tau: the steps of all rounds that an agent took part in."""
    keep_fraction: float = 1.0
    bound: float = 1.0
    """G, the bound on a sample's whole gradient."""

    def __post_init__(self) -> None:
        expect_count("batch_size", self.batch_size, "give the size of a batch")
        expect_count("samples", self.samples, "give an agent's number of samples", least=self.batch_size)
        expect_count("steps", self.steps, "give the steps of all rounds of an agent")
        expect_probability("keep_fraction", self.keep_fraction, "1 keeps everything")
        expect_positive("bound", self.bound, "give G, the bound on a sample's whole gradient")

    @property
    def sampling_rate(self) -> float:
        return self.batch_size / self.samples

    def noise_multiplier(self, noise: float) -> float:
        """sigma over what one sample can add to the mean of a batch, sqrt(p) G / B."""
        return noise * self.batch_size / (math.sqrt(self.keep_fraction) * self.bound)


def privacy_at(order: float, batches: Batches, noise: float, delta: float) -> float:
    """Theorem 1 at one order: epsilon of all of an agent's updates towards one of its samples.

        epsilon = 7 q^2 I tau a p G^2 / (B^2 sigma^2) + ln(1/delta) / (a - 1)
        for sigma'^2 = sigma^2 B^2 / (2 p G^2) >= 0.7 and a <= (2/3) sigma'^2 ln(1 / (q a (1 + sigma'^2))) + 1

    Not a guarantee as printed: two samples' gradients differ by up to 2G/sqrt(d) in a coordinate, so that the squared
    sensitivity is 4 p G^2/B^2, of which the theorem has half. The print has sigma^2 before the logarithm; the lemma
    that it comes from (Wang et al. 2019) has sigma'^2, which is taken here. Orders outside of the range are refused.

    >>> few = Batches(batch_size=2, samples=600, steps=1350)
    >>> round(privacy_at(8.0, few, noise=2.5, delta=1e-3), 4)
    1.0204
    """
    expect_positive("noise", noise, "give the noise's deviation")
    expect_delta(delta)
    expect(order > 1, "an order above 1", order, "Renyi divergences have no other")
    spread = batches.noise_multiplier(noise) ** 2 / 2
    expect(spread >= 0.7, "sigma'^2 = sigma^2 B^2 / (2 p G^2) >= 0.7", spread, "Theorem 1 needs more noise")
    most = largest_order(batches, noise)
    expect(order <= most, f"an order of at most {most:.4g}", order, "Theorem 1 holds no further")
    return _unchecked(order, batches, noise, delta)


def _unchecked(order: float, batches: Batches, noise: float, delta: float) -> float:
    spread = batches.noise_multiplier(noise) ** 2 / 2
    return 3.5 * batches.sampling_rate**2 * batches.steps * order / spread + math.log(1 / delta) / (order - 1)


def largest_order(batches: Batches, noise: float) -> float:
    """The largest order for which Theorem 1 is stated; 1 where there is none. Exact.

    >>> largest_order(Batches(batch_size=50, samples=600, steps=1350), noise=0.1) > 2
    False
    """
    spread = batches.noise_multiplier(noise) ** 2 / 2
    low, high = 1.0, 1 / (batches.sampling_rate * (1 + spread))  # beyond it the logarithm is negative
    if high <= 1:
        return 1.0

    def allowed(order: float) -> bool:
        return order <= 2 / 3 * spread * math.log(1 / (batches.sampling_rate * order * (1 + spread))) + 1

    for _ in range(200):  # what is allowed is an interval: the right side falls while the order grows
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(middle) else (low, middle)
    return low


@dataclass(frozen=True)
class Prices:
    """What an agent's updates cost: by Theorem 1, and truly."""

    printed: float
    """Theorem 1 over all orders, its range left aside, as the published figures must have been made."""
    within_range: float
    """Theorem 1 over the orders that it is stated for; infinite where there is none."""
    fixed_size: float
    """The price of batches of exactly B samples, one sample replaced: what is executed."""
    poisson: float
    """The price of Poisson batches of the same rate, one sample more or less."""


def privacy(batches: Batches, noise: float, delta: float) -> Prices:
    """Theorem 1, least over its order, beside the true price of the same noise.

    Not a guarantee in its first two numbers (`privacy_at`); the other two are.

    >>> batches = Batches(batch_size=10, samples=600, steps=1350)
    >>> found = privacy(batches, noise_for(1.0, 1e-3, batches), 1e-3)
    >>> [round(one, 2) for one in (found.printed, found.within_range, found.fixed_size, found.poisson)]
    [1.0, 14.49, 0.33, 0.13]
    """
    expect_positive("noise", noise, "give the noise's deviation")
    expect_delta(delta)
    multiplier, rate = batches.noise_multiplier(noise), batches.sampling_rate
    slope = 3.5 * rate**2 * batches.steps / (multiplier**2 / 2)
    best = 1 + math.sqrt(math.log(1 / delta) / slope)
    most = largest_order(batches, noise) if multiplier**2 / 2 >= 0.7 else 1.0
    fixed = FixedSizeGaussian(multiplier, batches.batch_size, batches.samples)
    return Prices(
        _unchecked(best, batches, noise, delta),
        _unchecked(min(best, most), batches, noise, delta) if most > 1 else math.inf,
        epsilon_of(fixed, batches.steps, delta),
        epsilon_of(PoissonGaussian(multiplier, rate), batches.steps, delta),
    )


def noise_for(epsilon: float, delta: float, batches: Batches) -> float:
    """The noise at which Theorem 1, over all orders, gives an epsilon.

        epsilon = c + 2 sqrt(c ln(1/delta)),  c = 7 q^2 I tau p G^2 / (B sigma)^2

    Not a guarantee, as the theorem is not. It grows with the square root of p; the text says in proportion to p.

    >>> whole, quarter = (noise_for(1.0, 1e-3, Batches(10, 600, 1350, p)) for p in (1.0, 0.25))
    >>> round(quarter / whole, 12)
    0.5
    """
    expect_epsilon(epsilon)
    expect_delta(delta)
    slope = (math.sqrt(math.log(1 / delta) + epsilon) - math.sqrt(math.log(1 / delta))) ** 2
    unit = 7 * batches.sampling_rate**2 * batches.steps * batches.keep_fraction * batches.bound**2
    return math.sqrt(unit / slope) / batches.batch_size


def private_variance(bound: float, local_variance: float, keep_fraction: float, parameters: int, noise: float) -> float:
    """zeta_dp^2 = (G^2 + zeta_l^2)/p + p d sigma^2: what a step's gradient varies, with mask and noise, as printed.

    Not a guarantee: eq. 5 scales the masked noise by 1/p, as it does the gradient, so that k = p d coordinates have a
    variance of sigma^2/p^2 each, d sigma^2/p together (`masked_variance`). Theorem 2 and Lemma 3 are stated with the
    printed one, by which a smaller share of coordinates means less noise.

    >>> private_variance(1.0, 1.0, keep_fraction=0.5, parameters=100, noise=0.1)
    4.5
    """
    expect_positive("bound", bound, "give G, the bound on a sample's whole gradient")
    expect_not_negative("local_variance", local_variance, "give zeta_l^2, the variance of a batch's gradient")
    expect_probability("keep_fraction", keep_fraction, "1 keeps everything")
    expect_count("parameters", parameters, "give the number of the model's parameters")
    expect_not_negative("noise", noise, "give the noise's deviation")
    return (bound**2 + local_variance) / keep_fraction + keep_fraction * parameters * noise**2


def masked_variance(bound: float, local_variance: float, keep_fraction: float, parameters: int, noise: float) -> float:
    """What zeta_dp^2 is by eq. 5: (G^2 + zeta_l^2)/p + d sigma^2/p.

    Exact in the noise, and a bound in the gradient. At a fixed epsilon sigma^2 is proportional to p (Theorem 1): then
    the noise is the same for every share p, and a smaller one saves communication alone.

    >>> masked_variance(1.0, 1.0, keep_fraction=0.5, parameters=100, noise=0.1)
    6.0
    """
    private_variance(bound, local_variance, keep_fraction, parameters, noise)
    return (bound**2 + local_variance + parameters * noise**2) / keep_fraction


def best_keep_fraction(bound: float, local_variance: float, parameters: int, noise_at_one: float) -> float:
    """The share p at which zeta_dp^2 is least when epsilon is fixed, so that sigma^2 = p * (noise_at_one)^2.

        (G^2 + zeta_l^2)/p + p^2 d s^2  is least at  p = ((G^2 + zeta_l^2) / (2 d s^2))^(1/3), or at 1

    Not a guarantee, as the printed zeta_dp^2 is not; by `masked_variance` the best share is always 1.

    >>> best_keep_fraction(1.0, 0.0, parameters=4, noise_at_one=1.0)
    0.5
    """
    private_variance(bound, local_variance, 1.0, parameters, noise_at_one)
    if noise_at_one == 0:
        return 1.0
    return min(1.0, float(((bound**2 + local_variance) / (2 * parameters * noise_at_one**2)) ** (1 / 3)))


@dataclass(frozen=True)
class Problem:
    """What Theorem 2 assumes of the loss."""

    smoothness: float
    """L: gradients are L-Lipschitz."""
    bound: float
    """G: coordinates of a sample's gradient are within G/sqrt(d)."""
    parameters: int
    gap: float
    """f(theta_0) - f*."""
    local_variance: float = 0.0
    """zeta_l^2, of a batch's gradient around the agent's."""
    global_variance: float = 0.0
    """zeta_g^2, of the agents' gradients around the mean."""

    def __post_init__(self) -> None:
        expect_positive("smoothness", self.smoothness, "give L, the Lipschitz constant of gradients")
        expect_positive("bound", self.bound, "give G, the bound on a sample's whole gradient")
        expect_count("parameters", self.parameters, "give the number of the model's parameters")
        expect_not_negative("gap", self.gap, "give how far the loss is above its least value")
        expect_not_negative("local_variance", self.local_variance, "give zeta_l^2")
        expect_not_negative("global_variance", self.global_variance, "give zeta_g^2")


def largest_lr(problem: Problem, local_steps: int, server_lr: float, server_tau: float) -> float:
    """The largest local learning rate that Theorem 2 allows.

        min{1/(8 L tau), (1/(8 tau)) min{kappa sqrt(d)/G, sqrt(kappa^2 sqrt(d) / (G eta_g L))}}

    Exact: the printed condition. `server_tau` is the paper's kappa.

    >>> largest_lr(Problem(1.0, 1.0, 100, 1.0), local_steps=10, server_lr=1.0, server_tau=1.0)
    0.0125
    """
    expect_count("local_steps", local_steps, "give the number of local steps")
    expect_positive("server_lr", server_lr, "give the server's learning rate")
    expect_positive("server_tau", server_tau, "give kappa, what is added to the root of the second moment")
    wide = math.sqrt(problem.parameters) / problem.bound
    adaptive = min(server_tau * wide, server_tau * math.sqrt(wide / (server_lr * problem.smoothness)))
    return min(1 / problem.smoothness, adaptive) / (8 * local_steps)


@dataclass(frozen=True)
class Convergence:
    """The terms of a bound on the mean over rounds of ||gradient||^2, without their unknown constant."""

    start: float
    """What is left of f(theta_0) - f*."""
    drift: float
    """Agents that walk apart, with mask and noise."""
    variance: float
    """Of the mean of n agents' updates."""
    adaptive: float
    """Drift as the adaptive step sees it."""

    @property
    def total(self) -> float:
        return self.start + self.drift + self.variance + self.adaptive


def convergence(
    problem: Problem,
    agents: int,
    rounds: int,
    local_steps: int,
    lr: float,
    server_lr: float,
    server_tau: float,
    keep_fraction: float,
    noise: float,
    server_beta2: float = 0.99,
) -> Convergence:
    """Theorem 2: how small the gradient becomes, in the mean over rounds, with all agents in each and beta_1 = 0.

        O((sqrt(beta_2) eta_l tau G/sqrt(d) + kappa) (Xi + Xi'))
        Xi  = (f(theta_0) - f*)/(eta_l eta_g tau T) + (5 eta_l^2 tau L^2/(2 kappa)) (zeta_dp^2 + 6 tau zeta_g^2)
        Xi' = (eta_g L/2 + G/sqrt(d)) [4 eta_l zeta_dp^2/(n kappa^2)
              + (20 eta_l^3 tau^2 L^2/kappa^2) (zeta_dp^2 + 6 tau zeta_g^2)]

    An order of magnitude: O hides a constant. A learning rate above `largest_lr` is refused, as in the theorem.

    >>> problem = Problem(1.0, 1.0, 100, 1.0)
    >>> found = convergence(problem, 10, 100, 10, 0.01, 1.0, 1.0, keep_fraction=0.5, noise=0.1)
    >>> [round(term, 4) for term in (found.start, found.drift, found.variance, found.adaptive)]
    [0.101, 0.0063, 0.0061, 0.003]
    """
    expect_count("agents", agents, "give the number of agents")
    expect_count("rounds", rounds, "give the number of rounds")
    expect_share("server_beta2", server_beta2, "0 remembers nothing", zero=True)
    most = largest_lr(problem, local_steps, server_lr, server_tau)
    expect_positive("lr", lr, "give the local learning rate")
    expect(lr <= most, f"a learning rate of at most {most:.4g}", lr, "Theorem 2 holds no further")
    wide = problem.bound / math.sqrt(problem.parameters)
    step = math.sqrt(server_beta2) * lr * local_steps * wide + server_tau
    varies = private_variance(problem.bound, problem.local_variance, keep_fraction, problem.parameters, noise)
    apart = varies + 6 * local_steps * problem.global_variance
    outer = (server_lr * problem.smoothness / 2 + wide) / server_tau**2
    return Convergence(
        step * problem.gap / (lr * server_lr * local_steps * rounds),
        step * 5 * lr**2 * local_steps * problem.smoothness**2 / (2 * server_tau) * apart,
        step * outer * 4 * lr / agents * varies,
        step * outer * 20 * lr**3 * local_steps**2 * problem.smoothness**2 * apart,
    )


def rate(problem: Problem, agents: int, rounds: int, local_steps: int, private_variance: float) -> Convergence:
    """Lemma 3: Theorem 2 for eta_l = 1/(L tau sqrt(T)), eta_g = sqrt(n tau), kappa = G/(sqrt(d) L) and many rounds.

        O((f(theta_0) - f*)/sqrt(n tau T) + 2 zeta_dp^2 L/(G^2 sqrt(n tau T))
          + (zeta_dp^2 + 6 tau zeta_g^2)/(G tau T) + (zeta_dp^2 + 6 tau zeta_g^2) L sqrt(n)/(G^2 sqrt(tau) T^(3/2)))

    An order of magnitude. With many rounds the first two terms count, which fall as 1/sqrt(n tau T). The print reads
    "when T is sufficiently large", and does not say how large: at least so large that eta_l is allowed by Theorem 2.

    >>> found = rate(Problem(1.0, 1.0, 100, 1.0), agents=4, rounds=100, local_steps=25, private_variance=2.0)
    >>> [round(term, 4) for term in (found.start, found.variance, found.drift, found.adaptive)]
    [0.01, 0.04, 0.0008, 0.0008]
    """
    expect_count("agents", agents, "give the number of agents")
    expect_count("rounds", rounds, "give the number of rounds")
    expect_count("local_steps", local_steps, "give the number of local steps")
    expect_not_negative("private_variance", private_variance, "give what the function of that name returns")
    steps = math.sqrt(agents * local_steps * rounds)
    apart = private_variance + 6 * local_steps * problem.global_variance
    return Convergence(
        problem.gap / steps,
        apart / (problem.bound * local_steps * rounds),
        2 * private_variance * problem.smoothness / (problem.bound**2 * steps),
        apart * problem.smoothness * math.sqrt(agents / local_steps) / (problem.bound**2 * rounds**1.5),
    )
