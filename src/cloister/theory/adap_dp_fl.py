"""Adap DP-FL (Fu, Chen & Han 2022): Theorem 1 for any schedule of noise, beside the true price."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cloister.errors import expect, expect_count, expect_delta, expect_positive, expect_probability
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.events import PoissonGaussian
from cloister.theory.sampled_gaussian import log_moment_of_integer_order

ORDERS = tuple(range(2, 65))
"""The orders that the paper searches."""


def sampling_rate(batch_size: int, samples: int) -> float:
    """q = L/|D_k|. Exact.

    >>> sampling_rate(78, 6000)
    0.013
    """
    expect_count("batch_size", batch_size, "give L, the expected size of a batch")
    expect_count("samples", samples, "give the number of a client's samples", least=batch_size)
    return batch_size / samples


@dataclass(frozen=True)
class Theorem1:
    """An epsilon, and the order at which it is least."""

    epsilon: float
    order: int


def privacy(noise_multipliers: Sequence[float], sampling_rate: float, delta: float) -> Theorem1:
    """Theorem 1: epsilon of a client's steps with the noise multipliers sigma_0, sigma_1, ..., one a step.

        eps = (sum_t ln(sum_i binom(a, i) (1 - q)^(a - i) q^i exp((i^2 - i)/(2 sigma_t^2))) + ln(1/delta)) / (a - 1)

    least over whole orders a from 2 to 64. A guarantee for Poisson batches and a schedule that was fixed beforehand,
    towards one sample more or less. The print lacks the logarithm (its eq. 14 is a moment, not a divergence), without
    which a step of any noise would cost at least 1/(a - 1). Left out by the paper: the query behind the clipping
    threshold (`true_price` has it), and that noise chosen on the way needs a Renyi filter of a fixed order.

    >>> found = privacy([6.0] * 1000 + [3.0] * 1000, sampling_rate(78, 6000), delta=1e-5)
    >>> round(found.epsilon, 4), found.order
    (0.7809, 30)
    """
    expect(len(noise_multipliers) > 0, "at least one step", 0, "give the noise multiplier of every step")
    for noise in set(noise_multipliers):
        expect_positive("noise_multipliers", noise, "give the noise's scale over the clip for every step")
    expect_probability("sampling_rate", sampling_rate, "L/|D_k| is the paper's")
    expect_delta(delta)
    counts = Counter(noise_multipliers)

    def at(order: int) -> float:
        moments = sum(
            count * log_moment_of_integer_order(order, sampling_rate, noise) for noise, count in counts.items()
        )
        return (moments + math.log(1 / delta)) / (order - 1)

    return min((Theorem1(at(order), order) for order in ORDERS), key=lambda found: found.epsilon)


def true_price(
    noise_multipliers: Sequence[float], sampling_rate: float, delta: float, *, threshold_query: bool = True
) -> float:
    """What the same steps cost, by dp-accounting's distributions of the privacy loss.

    A guarantee for Poisson batches and a schedule that was fixed beforehand, towards one sample more or less. With
    `threshold_query`, the query of norms behind the next threshold (eq. 6), which has the same noise over its own bound
    and asks the same batch: both together are one Gaussian release with sigma_t / sqrt(2).

    >>> schedule = [6.0] * 1000 + [3.0] * 1000
    >>> [round(true_price(schedule, 0.013, 1e-5, threshold_query=asked), 2) for asked in (False, True)]
    [0.57, 0.86]
    """
    expect(len(noise_multipliers) > 0, "at least one step", 0, "give the noise multiplier of every step")
    loss = PrivacyLoss()
    for noise, count in Counter(noise_multipliers).items():
        expect_positive("noise_multipliers", noise, "give the noise's scale over the clip for every step")
        loss.add(PoissonGaussian(noise / math.sqrt(2) if threshold_query else noise, sampling_rate), count)
    return loss.epsilon(delta)


def decayed(start: float, decay: float, falls: Sequence[bool]) -> list[float]:
    """Eq. 9 as Algorithm 1 applies it: sigma of every step, where `falls` says of a step whether the public loss had
    fallen three times in a row when it ended. Exact.

    >>> decayed(4.0, 0.5, [False, True, False])
    [4.0, 4.0, 2.0]
    """
    expect_positive("start", start, "give the noise multiplier to start from")
    expect(0 < decay < 1, "0 < decay < 1", decay, "eq. 9 has no other")
    found = [start]
    for fell in falls[:-1]:
        found.append(found[-1] * decay if fell else found[-1])
    return found[: len(falls)]
