"""PFL ("Optimal strategies for federated learning maintaining client privacy", arXiv 2501.14453).

Theorem 1, Observation 1, Theorem 2, Definition 2, Theorem 3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from cloister.errors import (
    expect,
    expect_count,
    expect_epsilon,
    expect_not_negative,
    expect_positive,
)


def parallel_composition(epsilons: Sequence[float], parts: Sequence[Collection[Hashable]]) -> float:
    """Theorem 1 and Claim 1: what k clients cost together, if their data are disjoint: the largest of their epsilons.

    A guarantee (Smith et al. 2021), with the largest delta, too, where clients have one. `parts` says which samples
    each client holds. Those that overlap are refused: a sample that c clients hold is used c times, and pays c times.
    The experiments' parts overlap, being drawn anew for each client.

    >>> parallel_composition([1.0, 2.93], [{"a", "b"}, {"c"}])
    2.93
    """
    expect(len(epsilons) == len(parts) > 0, "an epsilon for every client", len(epsilons), "give both")
    for epsilon in epsilons:
        expect_epsilon(epsilon)
    held: set[Hashable] = set()
    for part in parts:
        twice = held & set(part)
        remedy = "Theorem 1 does not hold for them, so price a sample by all clients that hold it"
        expect(not twice, "disjoint parts", f"{len(twice)} samples with several clients", remedy)
        held |= set(part)
    return max(epsilons)


def intermediate_epsilon(epsilon: float, epochs: int, done: int) -> float:
    """Observation 1: epsilon after `done` of T = `epochs` epochs that cost `epsilon` in the end: epsilon sqrt(done/T).

    An order of magnitude, from the closed form of Abadi et al. (2016); certain is only that it is not larger. The true
    price after one of 20 epochs (batches of 64 of 6,000, noise multiplier 0.96, delta 1e-5) is 0.85, where this says
    0.66.

    >>> round(intermediate_epsilon(2.93, epochs=20, done=5), 4)
    1.465
    """
    expect_epsilon(epsilon)
    expect_count("epochs", epochs, "give the number of all epochs")
    expect_count("done", done, "give the number of epochs done", most=epochs)
    return epsilon * math.sqrt(done / epochs)


def mean_noise_norm(noise_multiplier: float, clip_norm: float, parameters: int) -> float:
    """E||N(0, sigma^2 C^2 I)|| = sqrt(2) sigma C Gamma((N+1)/2) / Gamma(N/2), about sigma C sqrt(N). Exact.

    >>> round(mean_noise_norm(1.0, 1.0, 1), 6) == round(math.sqrt(2 / math.pi), 6)
    True
    """
    expect_not_negative("noise_multiplier", noise_multiplier, "give the noise's scale over the clip")
    expect_positive("clip_norm", clip_norm, "give the clip")
    expect_count("parameters", parameters, "give the number of the model's parameters")
    ratio = math.exp(math.lgamma((parameters + 1) / 2) - math.lgamma(parameters / 2))
    return math.sqrt(2) * noise_multiplier * clip_norm * ratio


def degradation(
    local_epochs: int,
    lr: float,
    clip_norm: float,
    noise_multiplier: float,
    batch_size: int,
    parameters: int,
    lipschitz: float,
    plain_lr: float,
    gradient_bound: float,
    rounds: int = 1,
) -> float:
    """Theorem 2's bound: how far DP-SGD's risk is from SGD's, after E local steps ("epochs") from the same start.

        beta E (alpha C + alpha_1 C_1 + (alpha/L) E||noise||)

    for a loss that is beta-Lipschitz in the parameters; alpha_1 and C_1 are the learning rate and the (largest) norm of
    gradients of SGD. A guarantee, and a loose one: a triangle inequality over the steps. It is least at E = 1, which
    the paper takes for the proof that one local epoch a round is best. But it is the bound of ONE round. The same
    inequality holds over all steps of `rounds` rounds, as means of models are not further apart than the models: R
    rounds of E epochs have E R times the bound of a step, which at a fixed budget T = E R is the same for every E.

    >>> one = degradation(1, 0.3, 1.0, 1.0, 64, 10_000, 1.0, 0.3, 5.0)
    >>> round(one, 4), round(degradation(4, 0.3, 1.0, 1.0, 64, 10_000, 1.0, 0.3, 5.0) / one, 9)
    (2.2687, 4.0)
    >>> by_split = {degradation(e, 0.3, 1.0, 1.0, 64, 10_000, 1.0, 0.3, 5.0, rounds=20 // e) for e in (1, 2, 4, 5)}
    >>> round(max(by_split) - min(by_split), 9)
    0.0
    """
    expect_count("local_epochs", local_epochs, "give the number of local steps in a round")
    expect_positive("lr", lr, "give the learning rate of DP-SGD")
    expect_count("batch_size", batch_size, "give the size of a batch")
    expect_positive("lipschitz", lipschitz, "give beta, the Lipschitz constant of the loss")
    expect_positive("plain_lr", plain_lr, "give the learning rate of SGD")
    expect_positive("gradient_bound", gradient_bound, "give the largest norm of SGD's gradients")
    expect_count("rounds", rounds, "give the number of rounds")
    noise = lr / batch_size * mean_noise_norm(noise_multiplier, clip_norm, parameters)
    return lipschitz * local_epochs * rounds * (lr * clip_norm + plain_lr * gradient_bound + noise)


def utility(risks: ArrayLike, ideal_risk: float, distance: float) -> float:
    """Definition 2, l-utility: the share of trained models whose risk is less than l from that of the ideal one.

        U_l(theta, theta*, D) = P(E[|R(theta, D) - R(theta*, D)|] < l),  l within [0, 1]

    Not a bound: an estimate, from the risks of models of repeated runs. The print takes an expectation inside of the
    probability; read as: the expectation over data, the probability over training.

    >>> utility([0.10, 0.12, 0.30, 0.11], ideal_risk=0.08, distance=0.05)
    0.75
    """
    found = np.asarray(risks, dtype=np.float64).reshape(-1)
    expect(found.size > 0, "the risk of at least one model", found.size, "give one for each run")
    expect(0 <= distance <= 1, "0 <= distance <= 1", distance, "Definition 2 has no other")
    return float(np.mean(np.abs(found - ideal_risk) < distance))


def least_utility(clients: int, distance: float, deviation: float, lipschitz: float) -> float:
    """Theorem 3: l-utility of the mean of k clients' models is at least 1 - sigma^2 beta^2 / (l^2 k).

    A guarantee under what it assumes: clients' models are independent, with mean theta* (the ideal) and a total
    variance of sigma^2, and the loss is beta-Lipschitz. That their mean is the ideal is a strong assumption: clipping
    alone breaks it. 0 where the bound is vacuous.

    >>> least_utility(clients=100, distance=0.1, deviation=0.5, lipschitz=1.0)
    0.75
    """
    expect_count("clients", clients, "give the number of clients")
    expect(0 < distance <= 1, "0 < distance <= 1", distance, "Definition 2 has no other, and 0 promises nothing")
    expect_not_negative("deviation", deviation, "give the deviation of a client's model")
    expect_positive("lipschitz", lipschitz, "give beta, the Lipschitz constant of the loss")
    return max(0.0, 1 - (deviation * lipschitz / distance) ** 2 / clients)
