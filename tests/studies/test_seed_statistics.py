"""Means, intervals, paired comparisons and rankings: against scipy, and by simulation where the truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from cloister.errors import CloisterError
from cloister.studies.statistics import holm, paired, ranking, summary


@pytest.fixture
def rng():
    return np.random.default_rng(17)


def seeds(scores) -> dict[int, float]:
    return dict(enumerate(map(float, scores)))


@pytest.mark.parametrize("n", [2, 3, 7, 30])
def test_means_and_intervals_are_those_of_scipy(rng, n):
    scores = rng.normal(0.7, 0.02, n)
    found = summary(scores, 0.9)
    interval = stats.ttest_1samp(scores, 0.0).confidence_interval(0.9)
    assert (found.n, found.mean, found.sd) == (n, pytest.approx(scores.mean()), pytest.approx(np.std(scores, ddof=1)))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_paired_comparisons_are_those_of_scipy_over_common_seeds(rng, n):
    one, other = rng.normal(0.7, 0.02, n), rng.normal(0.69, 0.02, n)
    scores = {"one": {**seeds(one), 100: 0.1}, "other": {**seeds(other), 200: 0.9}}  # seeds of one alone do not count
    found, reference = paired(scores, "one", "other"), stats.ttest_rel(one, other)
    interval = reference.confidence_interval(0.95)
    assert (found.n, found.mean, found.p) == (n, pytest.approx((one - other).mean()), pytest.approx(reference.pvalue))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_few_seeds_say_so():
    one = paired({"a": {0: 0.9}, "b": {0: 0.1}}, "a", "b")
    assert (one.mean, one.low, one.p, one.verdict) == (pytest.approx(0.8), None, None, "cannot tell")
    none = paired({"a": {0: 0.9, 1: 0.9}, "b": {2: 0.1}}, "a", "b")
    assert (none.n, none.mean, none.verdict) == (0, None, "cannot tell")
    same = paired({"a": {0: 0.9, 1: 0.8}, "b": {0: 0.8, 1: 0.7}}, "a", "b")
    assert (same.n, same.p, same.low, same.verdict) == (2, None, None, "cannot tell"), "by chance, on few test samples"
    assert [one.verdict for one in ranking({"a": {0: 0.9}, "b": {0: 0.1}})] == ["best", "cannot tell"]
    assert ranking({}) == []
    with pytest.raises(CloisterError, match="Expected one of a, b, found 'c': name a row"):
        paired({"a": {0: 0.9}, "b": {0: 0.1}}, "a", "c")


def test_holm_is_the_textbook_procedure(rng):
    """Step by step: reject while the k-th smallest of m is at most alpha / (m - k + 1), then stop."""
    for _ in range(200):
        p = rng.beta(0.5, 3, size=6)
        adjusted = holm([float(one) for one in p])
        for alpha in (0.01, 0.05, 0.2):
            rejected = set()
            for rank, place in enumerate(np.argsort(p)):
                if p[place] > alpha / (6 - rank):
                    break
                rejected.add(int(place))
            assert {place for place, one in enumerate(adjusted) if one <= alpha} == rejected


def coverage(rng, n: int, factor: float = 1.0) -> float:
    """How often the interval (of normal quantiles where `factor` says so) holds the truth, of 4,000."""
    held = 0
    for scores in rng.normal(0.7, 0.02, (4000, n)):
        found = summary(scores)
        half = factor * (found.high - found.low) / 2
        held += abs(found.mean - 0.7) <= half
    return held / 4000


@pytest.mark.parametrize("n", [2, 3, 5])
def test_intervals_hold_the_truth_as_often_as_they_say(rng, n):
    assert coverage(rng, n) == pytest.approx(0.95, abs=0.02)  # 5.8 standard deviations
    too_short = stats.norm.ppf(0.975) / stats.t.ppf(0.975, n - 1)
    assert coverage(rng, n, too_short) < 0.93 - 0.02, "what the normal quantile would give is told from it"


def any_worse(rng, methods: int, n: int, gap: float = 0.0) -> float:
    """How often some method is called worse that is as good as the others (or the last, by so many deviations)."""
    found = 0
    for draw in rng.normal(0.7, 0.02, (400, methods, n)):
        draw[-1] -= gap * 0.02
        verdicts = {one.name: one.verdict for one in ranking({str(i): seeds(row) for i, row in enumerate(draw)})}
        found += verdicts[str(methods - 1)] == "worse" if gap else "worse" in verdicts.values()
    return found / 400


def test_methods_that_are_equal_are_seldom_called_worse_and_a_bad_one_mostly(rng):
    assert any_worse(rng, 4, 5) < 0.05 + 0.06  # 5.5 standard deviations
    assert any_worse(rng, 4, 5, gap=10) > 0.9


def test_a_ranking_knows_which_way_is_better():
    scores = {"high": {0: 3.0, 1: 3.1, 2: 3.05}, "low": {0: 1.0, 1: 1.12, 2: 1.03}}
    assert [(one.name, one.verdict) for one in ranking(scores)] == [("high", "best"), ("low", "worse")]
    assert [one.name for one in ranking(scores, larger_is_better=False)] == ["low", "high"]


def test_seeds_that_others_lack_do_not_decide_a_ranking():
    """The first has a lucky seed that the second lacks; on those that both have it is worse."""
    base = {1: 0.70, 2: 0.71, 3: 0.69}
    lucky = {0: 0.99, **base}
    better = {seed: score + gap for (seed, score), gap in zip(base.items(), (0.05, 0.051, 0.049), strict=True)}
    first, second = ranking({"lucky": lucky, "better": better})
    assert (first.name, second.verdict, second.behind) == ("better", "worse", pytest.approx(0.05))
    # No seed is common to all three: the order is by all seeds of each, and the pair that contradicts it says nothing.
    found = {one.name: one.verdict for one in ranking({"lucky": lucky, "better": better, "other": {9: 0.1}})}
    assert found == {"lucky": "best", "better": "cannot tell", "other": "cannot tell"}


def test_how_far_behind_knows_which_way_is_better():
    scores = {"a": {0: 1.0, 1: 1.1}, "b": {0: 2.0, 1: 2.2}}
    assert [one.behind for one in ranking(scores, larger_is_better=False)] == [None, pytest.approx(1.05)]
