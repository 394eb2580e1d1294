"""Lower bounds on epsilon from what an attacker guessed right and wrong, each with its confidence.

A guarantee bounds what every test can reach: with false positive rate a and true positive rate b, b <= exp(epsilon) a
+ delta, and the same of the true negative rate. Rates are not known but counted, so each is replaced by the end of an
exact (Clopper-Pearson) interval that is worse for the attacker. What is then larger than the guarantee allows refutes
it, but for a chance of 1 - confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import optimize, stats

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def at_most(hits: int, of: int, miss: float) -> float:
    """The largest chance of a hit that so few hits leave possible, but for a chance `miss` (Clopper & Pearson 1934).

    >>> round(at_most(0, 100, 0.05), 4)  # 1 - 0.05 ** (1 / 100)
    0.0295
    """
    return 1.0 if hits >= of else float(stats.beta.isf(miss, hits + 1, of - hits))


def at_least(hits: int, of: int, miss: float) -> float:
    """The smallest chance of a hit that so many hits leave possible, but for a chance `miss`.

    Hits may have chances of their own, as guesses about two worlds have: of all independent coins with a given mean
    chance, those that are alike have the heaviest tail (Hoeffding 1956), so that it is their mean which is bounded.
    """
    return 1.0 - at_most(of - hits, of, miss)


def from_rates(false_positives: int, negatives: int, hits: int, positives: int, delta: float, miss: float) -> float:
    """The epsilon that a test refutes, whatever the mechanism, but for a chance `miss` shared by its two rates.

    >>> from_rates(0, 1000, 1000, 1000, 0.0, 0.05) > 5
    True
    """
    worst = at_most(false_positives, negatives, miss / 2), at_least(hits, positives, miss / 2)
    return max(_refuted(worst[0], worst[1], delta), _refuted(1 - worst[1], 1 - worst[0], delta), 0.0)


def _refuted(false_positive: float, true_positive: float, delta: float) -> float:
    """log((TPR - delta) / FPR), or nothing where that is not more than zero."""
    return math.log((true_positive - delta) / false_positive) if true_positive > delta + false_positive else 0.0


def gdp_delta(mu: float, epsilon: float) -> float:
    """The smallest delta of a mu-GDP mechanism at epsilon (Dong, Roth & Su 2022, Corollary 2.13)."""
    if mu <= 0:
        return 0.0
    right = math.exp(epsilon + stats.norm.logcdf(-epsilon / mu - mu / 2))
    return float(stats.norm.cdf(-epsilon / mu + mu / 2) - right)


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a mu-GDP mechanism at delta.

    >>> round(gdp_epsilon(1.0, 1e-5), 3)
    4.377
    """
    if mu <= 0 or gdp_delta(mu, 0.0) <= delta:
        return 0.0
    most = 1.0
    while gdp_delta(mu, most) > delta:
        most *= 2
    return float(optimize.brentq(lambda epsilon: gdp_delta(mu, epsilon) - delta, 0.0, most, xtol=1e-10))


def one_run_p_value(guessable: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses in ONE run are at most, if it is (epsilon, delta)-private for every one of
    `guessable` canaries that were in by a fair coin of their own (Steinke, Nasr & Jagielski 2023, Theorem 5.2).

    Without delta, right guesses are at most as many as Bin(guesses, e^epsilon / (1 + e^epsilon)); delta adds at most
    2 m delta times the largest mean, over i, of the i terms just below `right`.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    below = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    most = float((below / np.arange(1, right + 1)).max()) if right else 0.0
    return min(1.0, tail + 2 * guessable * delta * most)


def from_one_run(guessable: int, guesses: int, right: int, delta: float, miss: float) -> float:
    """The epsilon that right guesses in one run refute, but for a chance `miss`; no trade-off curve is presumed."""

    def kept(epsilon: float) -> float:
        return one_run_p_value(guessable, guesses, right, epsilon, delta) - miss

    if not guesses or kept(0.0) >= 0:
        return 0.0
    most = 1.0
    while kept(most) < 0:
        most *= 2
        if most > 500:  # every guess was right, of so many that nothing finite explains it
            return most
    return float(optimize.brentq(kept, 0.0, most, xtol=1e-9))


def best_threshold(negative: Vector, positive: Vector, worth: Callable[[int, int], float]) -> float:
    """The threshold between the scores of two worlds at which (false positives, hits) are worth most.

    To be asked of trials that are not counted afterwards: a bound at a threshold that was chosen by the trials it is
    about holds for none.
    """
    scores = np.unique(np.concatenate([negative, positive]))
    if len(scores) < 2:
        return float(scores[0]) if len(scores) else 0.0
    middle = (scores[1:] + scores[:-1]) / 2
    tried = middle[np.unique(np.linspace(0, len(middle) - 1, min(len(middle), _TRIED)).astype(int))]
    ends = np.concatenate([middle[:_ENDS], middle[-_ENDS:]])
    tried = np.unique(np.concatenate([tried, ends]))
    false_positives = len(negative) - np.searchsorted(np.sort(negative), tried, side="right")
    hits = len(positive) - np.searchsorted(np.sort(positive), tried, side="right")
    values = [worth(int(f), int(h)) for f, h in zip(false_positives, hits, strict=True)]
    best = np.flatnonzero(np.array(values) == max(values))
    return float(tried[best[len(best) // 2]])


_TRIED, _ENDS = 400, 50
"""Thresholds that are tried over all scores, and each of the outermost."""
