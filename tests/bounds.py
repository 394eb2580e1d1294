"""Statistical tests that fail by chance in less than one of a thousand million runs.

A test that draws from the system's generator has no seed, so that it rejects the right law now and then. Each of these
does so with probability at most FALSE_ALARM. That holds for every number of draws: nothing here is an asymptotic law,
whose tails are wrong where cells are small. What each of them would notice, and how surely, stands beside its use;
`test_bounds.py` checks the bounds by enumeration, and that arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import special, stats

FALSE_ALARM = 1e-9


def fits_rate(heads: int, tosses: int, sampling_rate: float, alarm: float = FALSE_ALARM) -> bool:
    """Whether so many heads can come of independent tosses; by the two tails of the binomial law, which is exact."""
    return bool(
        min(stats.binom.cdf(heads, tosses, sampling_rate), stats.binom.sf(heads - 1, tosses, sampling_rate)) > alarm / 2
    )


def fits_curve(draws: np.ndarray, cdf: Callable[[np.ndarray], np.ndarray], alarm: float = FALSE_ALARM) -> bool:
    """Whether draws are of a continuous law, by the largest distance of their distribution from its own.

    P(distance > d) <= 2 exp(-2 n d^2) for every n (Dvoretzky, Kiefer & Wolfowitz; the constant is Massart's, 1990).
    """
    ordered, count = np.sort(draws), len(draws)
    expected, steps = cdf(ordered), np.arange(count + 1) / count
    return bool(max((steps[1:] - expected).max(), (expected - steps[:-1]).max()) <= reach(count, alarm))


def reach(count: int, alarm: float = FALSE_ALARM) -> float:
    """The distance beyond which `fits_curve` rejects."""
    return math.sqrt(math.log(2 / alarm) / (2 * count))


def fits_cells(observed: np.ndarray, probability: np.ndarray, alarm: float = FALSE_ALARM) -> bool:
    """Whether counts are of a multinomial law, by the relative entropy of their shares with respect to it."""
    if bool((observed[probability == 0] > 0).any()):
        return False
    total = int(observed.sum())
    entropy = float(special.kl_div(observed / total, probability).sum())
    return total * entropy <= limit(int((probability > 0).sum()), alarm)


def limit(cells: int, alarm: float = FALSE_ALARM) -> float:
    """The least t with exp(-t) (e t / (cells - 1))^(cells - 1) <= alarm, and t >= cells - 1.

    That bounds P(n entropy >= t) for every n and every law on so many cells (Agrawal, "Finite-sample concentration of
    the multinomial in relative entropy", 2020, Theorem 1.2).
    """
    free = max(cells - 1, 1)
    low, high = float(free), free + 100.0 * (1 + math.sqrt(free) - math.log(alarm))
    for _ in range(100):
        middle = (low + high) / 2
        enough = free * (1 + math.log(middle / free)) - middle <= math.log(alarm)
        low, high = (low, middle) if enough else (middle, high)
    return high


def missed(tosses: int, right: float, wrong: float) -> float:
    """The probability that `fits_rate` accepts a wrong rate where heads come at the right one; exact."""
    heads = np.arange(tosses + 1)
    tails = np.minimum(stats.binom.cdf(heads, tosses, wrong), stats.binom.sf(heads - 1, tosses, wrong))
    accepted = np.flatnonzero(tails > FALSE_ALARM / 2)
    if not len(accepted):
        return 0.0
    first, last = accepted[0], accepted[-1]  # the binomial law has one peak: what is accepted has no gaps
    return float(stats.binom.cdf(last, tosses, right) - stats.binom.cdf(first - 1, tosses, right))
