"""From how often somebody guessed right to epsilon, by the curve that such releases have under other noise.

What was charged says which releases there were: Gaussian ones, sampled or not, so many of them. How much noise they
REALLY had is what an audit asks. Guesses that are right with probability p, on average over both worlds, need a total
variation of 2 p - 1 at least. The most noise under which these releases leave as much is an upper bound on the noise
that was there, and what they cost under it is a lower bound on epsilon (after Nasr et al. 2023, who take a curve from
one rate and another).

That the trade-off curve is one of this family is presumed. The curve is the accountant's. Where that is tight (Gaussian
and Poisson-sampled noise), so is the bound; over cohorts of fixed size it is tight for one round and data of the worst
kind. Where it is not, the noise is still at most what is found, and what is bounded is what the accountant charges for
it: that is what a certificate is compared with, and the smallest epsilon that holds may be less.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from scipy import stats

from cloister.auditing.bounds import gdp_epsilon
from cloister.privacy.accountant import PrivacyLoss
from cloister.privacy.events import (
    DiscreteGaussianSum,
    Event,
    FixedSizeGaussian,
    Gaussian,
    PoissonGaussian,
    ReleasedSizeGaussian,
)

Releases = Mapping[Event, int]
_SCALED = (Gaussian, PoissonGaussian, FixedSizeGaussian, ReleasedSizeGaussian)
_FIRST, _LAST, _EXACT = 0.1, 6.0, 1e-3
"""Of the logarithm of that multiple: where to look first, where to give up, and how close to come."""


def known(releases: Releases) -> bool:
    """Whether there is such a family: noise of one kind whose width is all that is open."""
    kinds = (*_SCALED, DiscreteGaussianSum)
    return bool(releases) and all(isinstance(event, kinds) and event.noise_multiplier > 0 for event in releases)


def gaussian(releases: Releases) -> bool:
    """Whether all of them are Gaussian and nothing is sampled: then the curve is that of one Gaussian release."""
    return known(releases) and all(isinstance(event, Gaussian) for event in releases)


def mu_of(accuracy: float) -> float:
    """The mu at which nobody guesses right more often: Phi(mu / 2)."""
    return max(0.0, 2 * float(stats.norm.ppf(accuracy)))


def epsilon_of(accuracy: float, releases: Releases, delta: float) -> float:
    """The least that these releases cost, if guesses were right with this probability.

    >>> round(epsilon_of(0.75, {Gaussian(1.0): 1}, 1e-5), 2)  # of mu 1.35, whatever noise was charged
    6.21
    """
    advantage = 2 * accuracy - 1
    if advantage <= 0:
        return 0.0
    if gaussian(releases):
        return gdp_epsilon(mu_of(accuracy), delta)
    factor = _widest(advantage, releases)
    return 0.0 if factor is None else loss_of(releases, factor).epsilon(delta)


def _widest(advantage: float, releases: Releases) -> float | None:
    """The most noise, as a multiple of what was charged, that leaves this total variation; None where any does, or
    none."""

    def leaves(exponent: float) -> bool:
        return loss_of(releases, math.exp(exponent)).epsilon(advantage) > 0  # delta(0) is the total variation

    low, high = -_FIRST, _FIRST
    while leaves(high):
        low, high = high, 2 * high
        if high > _LAST:
            return None
    while not leaves(low):
        low, high = 2 * low, low
        if low < -_LAST:  # not even without noise: these were other releases, and their curve says nothing
            return None
    while high - low > _EXACT:
        middle = (low + high) / 2
        low, high = (middle, high) if leaves(middle) else (low, middle)
    return math.exp(high)


def loss_of(releases: Releases, factor: float) -> PrivacyLoss:
    """What the releases cost under so many times the noise."""
    loss = PrivacyLoss()
    for event, count in Counter(releases).items():
        loss.add(scaled(event, factor), count)
    return loss


def scaled(event: Event, factor: float) -> Event:
    """The same release under so many times the noise; of whole numbers, as if it were of real ones."""
    if isinstance(event, DiscreteGaussianSum):  # which is wider than what it is compared with by next to nothing
        z = event.noise_multiplier * factor
        return Gaussian(z) if event.sampling_rate == 1 else PoissonGaussian(z, event.sampling_rate)
    assert isinstance(event, _SCALED)
    return replace(event, noise_multiplier=event.noise_multiplier * factor)
