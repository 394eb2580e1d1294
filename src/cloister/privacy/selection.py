"""The best of a random number of private trials, and what releasing it costs.

Papernot & Steinke, "Hyperparameter tuning with Renyi differential privacy" (ICLR 2022, arXiv 2110.03620). A trial draws
its settings at random, trains and gives a score, all of it private. The number of trials K is drawn from a public
distribution, independently of everything else; the trials are independent of one another; the one with the best score
is released, and nothing of the others. If a trial is (order, a)-RDP and (order_hat, b)-RDP, that release has the
divergence c at `order`:

    truncated negative binomial (Theorem 2; shape eta >= 0, stopping probability gamma)
        c = a + (1 + eta) (1 - 1/order_hat) b + (1 + eta) log(1/gamma) / order_hat + log E[K] / (order - 1)
        eta = 1 is the geometric distribution, eta = 0 the logarithmic one
    Poisson (Theorem 6), where a trial is (log(1 + 1/(order - 1)), delta_hat)-DP
        c = a + E[K] delta_hat + log E[K] / (order - 1)

A fixed number of trials has no such bound: it may cost about as much as releasing all of them. dp-accounting computes
both prices, and delta_hat from a trial's divergences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cloister.errors import expect, expect_not_negative

MOST_TRIALS = 10_000
"""On average: more are a slip of the hand."""
_REST = 2.0**-60  # a tail that 53 random bits do not reach
_DEVIATIONS = 10.0  # a Poisson number is further below its mean with a probability of e^-50 at most


@dataclass(frozen=True)
class TrialCount:
    """The distribution of the number of trials, which is public; what was drawn is not part of the release.

    >>> count = TrialCount(mean=10.0, shape=1.0)
    >>> count.words, count.gamma, round(count.probability(1), 3)
    ('geometric', 0.1, 0.1)
    """

    mean: float
    shape: float | None = 1.0
    """eta; None for the Poisson distribution."""

    def __post_init__(self) -> None:
        number = isinstance(self.mean, (int, float)) and not isinstance(self.mean, bool)
        fine = number and 1 <= self.mean <= MOST_TRIALS
        expect(fine, f"an expected number of trials from 1 to {MOST_TRIALS:,}", self.mean, "30 is a usual number")
        if self.shape is not None:
            expect_not_negative("shape", self.shape, "1 is the geometric distribution, 0 the logarithmic one")
            expect(self.shape <= 100, "shape <= 100", self.shape, "choose poisson, which is the limit")

    @property
    def words(self) -> str:
        """Its name."""
        known = {None: "Poisson", 1.0: "geometric", 0.0: "logarithmic"}
        return known.get(self.shape, f"truncated negative binomial of shape {self.shape:g}" if self.shape else "")

    @property
    def theorem(self) -> str:
        """What is proven of it."""
        return f"Papernot & Steinke 2022, Theorem {6 if self.shape is None else 2}"

    @cached_property
    def gamma(self) -> float | None:
        """The stopping probability; None for Poisson.

        The price is for a number that is smaller by at most 1e-9 of it, and so for E[K] and log(1/gamma) that are no
        smaller than those of the distribution which is drawn from.
        """
        if self.shape is None:
            return None
        from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial

        found = float(_gamma_truncated_negative_binomial(self.shape, self.mean))
        return found if self.shape == 1 else min(1.0, found * (1 + 2e-9))

    def probability(self, trials: int) -> float:
        """Of so many trials."""
        return next((p for k, p in self._probabilities() if k == trials), 0.0)

    def draw(self, uniform: float) -> int:
        """The number of trials that a uniform draw from [0, 1) stands for: the inverse of the distribution function."""
        expect(0 <= uniform < 1, "a draw from [0, 1)", uniform, "give one")
        below, found = 0.0, 0
        for trials, probability in self._probabilities():
            found = trials  # the last one, where rounding leaves the sum below 1
            below += probability
            if uniform < below:
                break
        return found

    def _probabilities(self) -> Iterator[tuple[int, float]]:
        """Numbers of trials with their probabilities, until next to nothing is left."""
        gamma, eta = self.gamma, self.shape
        if gamma is None or eta is None:
            # From where all that is below has no probability to speak of: e^-mean is no number above a mean of 745.
            first = max(0, math.floor(self.mean - _DEVIATIONS * math.sqrt(self.mean)))
            probability = math.exp(first * math.log(self.mean) - self.mean - math.lgamma(first + 1))
        elif gamma == 1:
            yield 1, 1.0
            return
        else:
            first = 1
            probability = (1 - gamma) * (eta / math.expm1(-eta * math.log(gamma)) if eta else -1 / math.log(gamma))
        while probability > _REST or first <= self.mean:
            yield first, probability
            if gamma is None or eta is None:
                probability *= self.mean / (first + 1)
            else:
                probability *= (1 - gamma) * (first + eta) / (first + 1)
            first += 1


def selection_rdp(count: TrialCount, orders: Sequence[float], divergences: Sequence[float] | Any) -> Any:
    """The Renyi divergences of releasing the best trial, at these orders, from those of one trial at all of them."""
    from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select

    shape = math.inf if count.shape is None else count.shape
    return _compute_rdp_repeat_and_select(np.asarray(orders), np.asarray(divergences), count.mean, shape)


@dataclass(frozen=True)
class TrialPrice:
    """What every trial keeps to, whatever its settings: divergences at two orders, which price the selection."""

    order: float
    divergence: float
    order_hat: float
    divergence_hat: float

    def selected(self, count: TrialCount) -> float:
        """The divergence, at `order`, of releasing the best of so many trials."""
        orders, divergences = (self.order, self.order_hat), (self.divergence, self.divergence_hat)
        return float(selection_rdp(count, orders, divergences)[0])

    def epsilon(self, count: TrialCount, delta: float) -> float:
        """Epsilon of the same, by that order alone."""
        return _epsilon(self.order, self.selected(count), delta)


def best_price(count: TrialCount, orders: Sequence[float], divergences: Any, delta: float) -> TrialPrice:
    """The two orders at which a trial with these divergences makes the cheapest selection."""
    known = [(order, float(found)) for order, found in zip(orders, divergences, strict=True) if math.isfinite(found)]
    expect(bool(known), "a trial with a finite Renyi divergence", "none", "add more noise")
    selected = selection_rdp(count, *zip(*known, strict=True))
    costs = [_epsilon(order, found, delta) for (order, _), found in zip(known, selected, strict=True)]
    best = known[int(np.argmin(costs))]
    return min((TrialPrice(*best, *hat) for hat in known), key=lambda price: price.selected(count))


def _epsilon(order: float, divergence: float, delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    return float(compute_epsilon([order], [divergence], delta)[0])
