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
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]
Profile = Callable[[Array], Array]
"""An upper bound on delta for every eps >= 0, convex in e^eps."""


def sampled(profile: Profile, sampling_rate: float, top: float, interval: float) -> Any:
    """The release over a share `sampling_rate` of the units as a PLD; what is above the loss `top`, unsampled, is
    infinite.
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    last = math.ceil((top + math.log(sampling_rate + (1 - sampling_rate) * math.exp(-top))) / interval)
    positive = np.multiply(np.arange(last + 1), interval, dtype=np.float64)
    # ln(1 + (e^eps - 1)/q), written so that a large eps does not overflow.
    unsampled = positive + np.log1p(-(1 - sampling_rate) * np.exp(-positive)) - math.log(sampling_rate)
    above = _without_a_corner(positive, sampling_rate * profile(unsampled))
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


def gaussian(eps: Array, shift: float) -> Array:
    """Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu), without cancellation in the tail.

    Sampled with any rate q it is convex at eps = 0, too: 2 Phi(-mu/2) + q (1 - 2 Phi(-mu/2)) <= 1.
    """
    from scipy.special import log_ndtr

    inside = log_ndtr(shift / 2 - eps / shift)
    found: Array = np.exp(inside) * -np.expm1(np.minimum(eps + log_ndtr(-shift / 2 - eps / shift) - inside, 0.0))
    return found
