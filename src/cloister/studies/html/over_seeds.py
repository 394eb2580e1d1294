"""What several seeds of one setting say together: a mean, its spread, and how sure it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

MOST_POINTS = 400
"""Of a curve: more cannot be told apart on a screen."""
CONFIDENCE = 0.95

T = TypeVar("T")


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    deviation: float | None
    """The standard deviation of a sample; None of one seed."""
    count: int

    @property
    def half_width(self) -> float | None:
        """Half of the 95 % interval of the mean by Student's t: seeds count as independent, scores as normal. None of
        one seed, and where all have the same score, as they may by chance on few test samples.

        >>> round(spread([0.90, 0.92, 0.94]).half_width, 4)
        0.0497
        """
        if not self.deviation:
            return None
        from scipy import stats

        quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.count - 1))
        return quantile * self.deviation / math.sqrt(self.count)


def spread(values: Sequence[float]) -> Spread:
    """Of the values of some seeds, one at least.

    >>> spread([1.0, 3.0])
    Spread(mean=2.0, deviation=1.4142135623730951, count=2)
    """
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


@dataclass(frozen=True)
class Curve:
    """Means over seeds along an axis, with standard deviations where there are several seeds."""

    x: list[float]
    mean: list[float]
    deviation: list[float] | None


def curve(by_round: Sequence[Mapping[int, float]], at: Sequence[Mapping[int, float]] | None = None) -> Curve | None:
    """A number over rounds, of several seeds; None where they have no round in common.

    Only rounds that every seed has are drawn: a mean whose members change from point to point would show steps that no
    run has. With `at`, a point lies at the mean of that number in its round, such as epsilon.

    >>> curve([{1: 0.5, 2: 0.7}, {1: 0.7, 2: 0.9, 3: 0.9}])
    Curve(x=[1, 2], mean=[0.6, 0.8], deviation=[0.14142, 0.14142])
    """
    seeds = [_finite(one) for one in by_round]
    places = [_finite(one) for one in at or ()]
    if not seeds:
        return None
    rounds = thinned(sorted(set.intersection(*(set(one) for one in [*seeds, *places]))))
    if not rounds:
        return None
    points = [spread([one[number] for one in seeds]) for number in rounds]
    x = [short(statistics.fmean(place[number] for place in places)) if places else number for number in rounds]
    deviations = [short(point.deviation) for point in points if point.deviation is not None]
    return Curve(x, [short(point.mean) for point in points], deviations or None)


def thinned(points: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """Not more than so many of them, evenly, the first and the last among them.

    >>> thinned([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(index * last / (most - 1))] for index in range(most)]


def short(value: float) -> float:
    """Five digits: more are not seen, and make the page heavier.

    >>> short(0.123456789)
    0.12346
    """
    return float(f"{value:.5g}")


def _finite(values: Mapping[int, float]) -> dict[int, float]:
    return {number: float(value) for number, value in values.items() if _is_finite(value)}


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
