"""Audits of ONE run with many canaries, each of which is in by a coin of its own.

Whoever sees the releases guesses the coins. Many right guesses refute a small epsilon by the theorem of Steinke, Nasr
& Jagielski (2023), which needs no second run. Andrew et al. (2024) fit Gaussians to the scores of canaries that were
in and of those that were not, and compute epsilon from the fit: an estimate. Canaries are orthogonal where the model
has as many parameters, and random otherwise, where they drown one another a little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from cloister.auditing.bounds import from_one_run
from cloister.auditing.found import FIT, ONE_RUN, LowerBound
from cloister.auditing.many_clients import play_clients
from cloister.auditing.many_samples import play_samples
from cloister.auditing.worst_case import Audited, Terms
from cloister.data.task import Task
from cloister.errors import expect_count

if TYPE_CHECKING:
    from cloister.auditing.audits import Progress

MOST = 4096
"""Canaries of one run: a worst case has as many parameters."""
SHARES = (1.0, 1 / 3, 0.1)
"""Of the canaries, how many are guessed: all, or only those with the most telling scores. The best of these counts,
at a confidence for all of them together."""


@dataclass(frozen=True)
class Scores:
    """How far the releases of a run point to each canary, and whether it was in."""

    scores: Tensor
    inside: Tensor


def one_run(
    terms: Terms, ready: Audited, task: Task | None, trials: int, confidence: float, seed: int, progress: Progress
) -> LowerBound:
    """A lower bound by guesses about the canaries of one run; it presumes no form of a trade-off curve."""
    played = _play(terms, task, trials, seed, progress)
    order = played.scores.argsort(descending=True)
    coins, count = played.inside[order], len(order)
    best = (-1.0, 0, 0)
    for share in SHARES:
        each = min(max(1, round(share * count / 2)), count // 2)  # nobody is guessed about twice
        right = int(coins[:each].sum()) + int((~coins[count - each :]).sum())
        found = from_one_run(count, 2 * each, right, terms.delta, (1 - confidence) / len(SHARES))
        best = max(best, (found, right, 2 * each))
    return LowerBound("one_run", best[0], confidence, ONE_RUN, count, best[1], best[2], 0.0, _told(played))


def one_shot(
    terms: Terms, ready: Audited, task: Task | None, trials: int, confidence: float, seed: int, progress: Progress
) -> LowerBound:
    """An estimate by Gaussians that are fitted to the canaries' scores; it has no confidence."""
    played = _play(terms, task, trials, seed, progress)
    scores, inside = played.scores.double(), played.inside
    fits = [(float(some.mean()), float(some.std())) for some in (scores[~inside], scores[inside])]
    epsilon = gaussians_epsilon(*fits[0], *fits[1], terms.delta)
    right = int(((scores > (fits[0][0] + fits[1][0]) / 2) == inside).sum())
    return LowerBound("one_shot", epsilon, None, FIT, len(scores), right, len(scores), 0.0, _told(played))


def _told(played: Scores) -> dict[str, float]:
    return {
        "inside_mean": float(played.scores[played.inside].mean()),
        "outside_mean": float(played.scores[~played.inside].mean()),
        "outside_deviation": float(played.scores[~played.inside].std()),
    }


def _play(terms: Terms, task: Task | None, trials: int, seed: int, progress: Progress) -> Scores:
    count = min(trials, MOST)
    expect_count("trials", count, "some hundreds of canaries", least=20)
    inside = torch.randint(2, (count,), generator=torch.Generator().manual_seed(seed + 17)).bool()
    if terms.of_samples:
        scores = play_samples(terms, inside, seed, progress)
    else:
        scores = play_clients(terms, task, inside, seed, progress)
    return Scores(scores.cpu(), inside)  # a run may be elsewhere; guesses and coins are counted here


def gaussians_epsilon(mean0: float, deviation0: float, mean1: float, deviation1: float, delta: float) -> float:
    """The epsilon at which two Gaussians are (epsilon, delta)-close, in both directions, by quadrature.

    >>> round(gaussians_epsilon(0.0, 1.0, 1.0, 1.0, 1e-5), 2)  # mu-GDP with mu = 1
    4.38
    """
    low = min(mean0 - 12 * deviation0, mean1 - 12 * deviation1)
    high = max(mean0 + 12 * deviation0, mean1 + 12 * deviation1)
    x = np.linspace(low, high, 200_001)
    logs = stats.norm.logpdf(x, mean0, deviation0), stats.norm.logpdf(x, mean1, deviation1)

    def excess(epsilon: float) -> float:
        ways = ((logs[0], logs[1]), (logs[1], logs[0]))
        found = [integrate.trapezoid(np.maximum(np.exp(p) - np.exp(epsilon + q), 0), x) for p, q in ways]
        return float(max(found)) - delta

    if excess(0.0) <= 0:
        return 0.0
    most = 1.0
    while excess(most) > 0:
        most *= 2
        if most > 300:
            return math.inf
    return float(optimize.brentq(excess, 0.0, most, xtol=1e-6))
