"""Amplification by a secret cohort (or batch) of fixed size, under replace-one: from a profile to a PLD.

Let a release over everyone have the profile delta(eps). Over a share q of the units, all such subsets being equally
likely, it has at most

    D(eps) = q * delta(ln(1 + (e^eps - 1)/q))            for eps >= 0
    D(eps) = 1 - e^eps + e^eps * D(-eps)                 for eps <  0

The first line is amplification by subsampling without replacement (Balle, Barthe & Gaboardi 2018); the second holds
because replace-one is symmetric. As a function of t = e^eps a true profile is convex. Where delta is an upper bound on
one, and convex for eps >= 0, the corner at eps = 0 may still point the wrong way. Then D is replaced, below some eps1,
by the straight line through (t, D) = (-1, 1) and (e^eps1, D(eps1)), which the second line turns into itself: no convex
curve that both lines hold for, and that is below D at eps1, comes above it. (This is all that (eps1, D(eps1))-DP says
of a smaller eps; Kairouz, Oh & Viswanath 2015.) With the steepest of these lines, a tangent, the curve is convex
everywhere. It is then the profile of a dominating pair, and such pairs compose (Zhu, Dong & Wang 2022). Connecting the
dots between the points of a grid lies above a convex curve.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Profile = Callable[[Array], Array]
"""An upper bound on delta for every eps >= 0, convex in e^eps."""


def sampled(profile: Profile, sampling_rate: float, top: float, interval: float) -> Any:
    """The release over a share `sampling_rate` of the units as a PLD; what is above the loss `top`, unsampled, is
    infinite.
    """
    return sampled_by_size(profile, [(1.0, sampling_rate)], top, interval)


def sampled_by_size(profile: Profile, shares: Sequence[tuple[float, float]], top: float, interval: float) -> Any:
    """The same over a share that is drawn, and released: (probability, share) of each, drawn from nobody's data.

    What is released is (share, release over that share). Its profile is the mean of their profiles: of every neighbor
    the same share has the same probability, and losses are compared share by share. A mean of convex curves is convex,
    and what holds below eps = 0 holds for it. Probabilities may add up to less than 1: the rest releases nothing.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    most = max(share for _, share in shares)
    last = math.ceil((top + math.log(most + (1 - most) * math.exp(-top))) / interval)
    positive = np.multiply(np.arange(last + 1), interval, dtype=np.float64)
    above = np.zeros_like(positive)
    for probability, share in shares:
        # ln(1 + (e^eps - 1)/q), written so that a large eps does not overflow.
        unsampled = positive + np.log1p(-(1 - share) * np.exp(-positive)) - math.log(share)
        above += probability * share * profile(unsampled)
    above = _without_a_corner(positive, above)
    negative = -positive[:0:-1]
    below = -np.expm1(negative) + np.exp(negative) * above[:0:-1]
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -last, last, np.clip(np.concatenate([below, above]), 0.0, 1.0)
    )
    return pld.PrivacyLossDistribution(pmf)


def _without_a_corner(eps: Array, deltas: Array) -> Array:
    """The curve, replaced below some point by the tangent from (t, D) = (-1, 1)."""
    reach = np.logaddexp(0.0, eps)  # ln(1 + t)
    with np.errstate(divide="ignore"):  # where delta is 1, the line is flat
        steepness = np.log1p(-deltas) - reach  # ln((1 - D) / (1 + t)), of the line through each point
    point = int(np.argmax(steepness))
    deltas[:point] = -np.expm1(steepness[point] + reach[:point])
    return deltas


def binomial_sizes(population: int, sampling_rate: float) -> list[tuple[float, float]]:
    """How large a Poisson cohort is: (probability, share of the population), as `sampled_by_size` takes them.

    Sizes are put together where there are many, each group at the size of its largest: a larger share loses more. The
    rare ones far out (1 in 1e9, and 1 in 1e18) are one group each, so that the grid stays fine where it matters.

    >>> [(round(p, 3), share) for p, share in binomial_sizes(2, 0.5)]  # nobody, one in four times, is left out
    [(0.5, 0.5), (0.25, 1.0)]
    """
    from scipy.stats import binom

    sizes = binom(population, sampling_rate)
    every = range(population + 1)
    low = bisect_left(every, True, key=lambda size: sizes.cdf(size) >= 1e-9)
    high, far = (bisect_left(every, True, key=lambda size: sizes.sf(size) <= tail) for tail in (1e-9, 1e-18))
    step = max(1, -(-(high - low) // _GROUPS))
    ends = sorted({*range(low, high, step), high, far, population})
    found, before = [], 0  # of whom nothing is released
    for end in ends:
        if end > 0:
            few = end < population * sampling_rate  # each of the two functions knows all digits of its own tail
            probability = sizes.cdf(end) - sizes.cdf(before) if few else sizes.sf(before) - sizes.sf(end)
            found.append((float(probability), end / population))
        before = max(end, 0)
    return found


_GROUPS = 128


def gaussian(eps: Array, shift: float) -> Array:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), without cancellation in the tail.

    Sampled with any rate q it is convex at eps = 0, too: 2 Phi(-mu/2) + q (1 - 2 Phi(-mu/2)) <= 1.
    """
    from scipy.special import log_ndtr

    inside = log_ndtr(shift / 2 - eps / shift)
    found: Array = np.exp(inside) * -np.expm1(np.minimum(eps + log_ndtr(-shift / 2 - eps / shift) - inside, 0.0))
    return found
