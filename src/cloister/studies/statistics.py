"""What a few seeds tell: means with their spread, differences of two methods, and which methods cannot be told apart.

All of it takes the scores of several seeds as independent and about normal. What varies from seed to seed is what the
runs draw: the initial model, cohorts, batches and noise. The test samples are the same for all, so that nothing here
says how the scores would be on others. With one seed there is no spread, and the answer is "cannot tell"; so it is
where all seeds give the same to the last digit, as they may by chance on few test samples.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from cloister.errors import expect, expect_share

CONFIDENCE = 0.95
FEW = 5
"""Seeds below which an interval rests on its assumptions more than on the data."""

NO_SPREAD = 1e-12
"""Relative: what rounding leaves of numbers that are the same."""

Scores = Mapping[int, float]
"""By seed."""


@dataclass(frozen=True)
class Summary:
    """Several scores: their mean and spread, and an interval for the mean that another set of seeds would tend to."""

    n: int
    mean: float
    sd: float | None
    """The standard deviation over seeds, with n - 1 in the denominator; None of a single one."""
    low: float | None
    high: float | None
    """Student's t interval; None of a single seed, or without any spread."""


def summary(scores: Sequence[float], confidence: float = CONFIDENCE) -> Summary:
    """The mean of some scores.

    >>> found = summary([0.70, 0.72, 0.74])
    >>> round(found.mean, 3), round(found.sd, 3), round(found.low, 3), round(found.high, 3)
    (0.72, 0.02, 0.67, 0.77)
    >>> summary([0.7])
    Summary(n=1, mean=0.7, sd=None, low=None, high=None)
    """
    expect_share("confidence", confidence, "0.95 is usual")
    expect(len(scores) > 0, "at least one score", 0, "run some seed")
    found = np.asarray(scores, dtype=np.float64)
    mean = float(found.mean())
    if len(found) < 2:
        return Summary(1, mean, None, None, None)
    sd = float(found.std(ddof=1))
    if sd <= NO_SPREAD * max(float(np.abs(found).max()), 1.0):
        return Summary(len(found), mean, 0.0, None, None)
    half = _quantile(len(found) - 1, confidence) * sd / math.sqrt(len(found))
    return Summary(len(found), mean, sd, mean - half, mean + half)


@dataclass(frozen=True)
class Difference:
    """The scores of `first` minus those of `second`, over the seeds that both have."""

    first: str
    second: str
    n: int
    """Seeds that both have."""
    mean: float | None
    """Of first minus second; None where they have no seed in common."""
    low: float | None
    high: float | None
    p: float | None
    """Of the paired t test that there is no difference; None below two seeds, or where all differ by the same."""
    adjusted_p: float | None = None
    """The same, by Holm for all comparisons that were made together."""
    confidence: float = CONFIDENCE

    @property
    def verdict(self) -> str:
        """What the seeds say: differ, not distinguishable, or cannot tell where too few are in common."""
        p = self.p if self.adjusted_p is None else self.adjusted_p
        if p is None:
            return "cannot tell"
        return "differ" if p < 1 - self.confidence else "not distinguishable"


def paired(scores: Mapping[str, Scores], first: str, second: str, confidence: float = CONFIDENCE) -> Difference:
    """Two methods seed by seed.

    >>> found = paired({"a": {0: 0.71, 1: 0.74, 2: 0.73}, "b": {0: 0.70, 1: 0.72, 2: 0.70}}, "a", "b")
    >>> round(found.mean, 3), round(found.p, 3), found.verdict
    (0.02, 0.074, 'not distinguishable')
    """
    for name in (first, second):
        expect(name in scores, f"one of {', '.join(scores)}", name, "name a row of the table")
    common = sorted(set(scores[first]) & set(scores[second]))
    if not common:
        return Difference(first, second, 0, None, None, None, None, confidence=confidence)
    gaps = [scores[first][seed] - scores[second][seed] for seed in common]
    about = summary(gaps, confidence)
    return Difference(first, second, len(gaps), about.mean, about.low, about.high, _p_value(about), None, confidence)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p values of comparisons that are made together, adjusted so that the chance of any false one is kept (Holm 1979).

    Comparisons without a p value are left out, and do not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True)
class Ranked:
    """One method in a ranking."""

    name: str
    about: Summary
    against_best: Difference | None
    """The best minus this one; None of the best itself."""
    larger_is_better: bool = True

    @property
    def behind(self) -> float | None:
        """How much worse it is than the best over the seeds that both have; below 0 where these say the contrary."""
        gap = None if self.against_best is None else self.against_best.mean
        return None if gap is None else gap if self.larger_is_better else -gap

    @property
    def verdict(self) -> str:
        """How it stands beside the best."""
        if self.against_best is None:
            return "best"
        if self.against_best.verdict == "differ" and (self.behind or 0.0) < 0:
            return "cannot tell"
        return {"differ": "worse"}.get(self.against_best.verdict, self.against_best.verdict)


def ranking(
    scores: Mapping[str, Scores], *, larger_is_better: bool = True, confidence: float = CONFIDENCE
) -> list[Ranked]:
    """Methods by their mean over the seeds that all have, and which of them are not distinguishable from the best.

    Where no seed is common to all, or some method has other seeds beside, the mean over those would be a comparison of
    seeds as well; and a pair whose common seeds contradict the order is not told apart by it ("cannot tell").

    p values are adjusted by Holm for all pairs, not for those with the best alone: which one is the best was seen in
    the same scores. So, however many methods are equal, the chance to call any of them worse is 1 - confidence at most.
    """
    sign = 1 if larger_is_better else -1
    if not scores:
        return []
    common = set.intersection(*(set(own) for own in scores.values()))

    def place(name: str) -> float:
        own = scores[name]
        return -sign * float(np.mean([own[seed] for seed in sorted(common or own)]))

    names = sorted(scores, key=place)
    pairs = list(itertools.combinations(names, 2))  # those with the best come first
    found = [paired(scores, first, second, confidence) for first, second in pairs]
    adjusted = holm([one.p for one in found])
    about = [replace(one, adjusted_p=p) for one, p in zip(found, adjusted, strict=True)][: len(names) - 1]
    summaries = {name: summary(list(scores[name].values()), confidence) for name in names}
    against = zip(names, [None, *about], strict=True)
    return [Ranked(name, summaries[name], one, larger_is_better) for name, one in against]


def _p_value(gaps: Summary) -> float | None:
    """Two-sided, of the mean being zero."""
    if not gaps.sd:
        return 1.0 if gaps.n > 1 and gaps.mean == 0 else None
    from scipy import special

    t = gaps.mean / (gaps.sd / math.sqrt(gaps.n))
    return float(2 * special.stdtr(gaps.n - 1, -abs(t)))


@cache
def _quantile(freedom: int, confidence: float) -> float:
    from scipy import special

    return float(special.stdtrit(freedom, (1 + confidence) / 2))
