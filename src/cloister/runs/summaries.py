"""Many numbers as a few: what a line of measurements holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_PER_OCTAVE = 12
"""Bins of a histogram between a norm and twice that norm: the same in every round, so that rounds can be compared.
(Files of before have 4; every edge of theirs is one of these.)"""

Array = np.ndarray[Any, np.dtype[np.float64]]


def distribution(values: Sequence[float]) -> dict[str, Any]:
    """Mean, least, most and quantiles of those that are finite; of none, only that there are none."""
    there = np.asarray(values, dtype=np.float64)
    there = there[np.isfinite(there)]
    if not len(there):
        return {"count": 0}
    quantiles = np.quantile(there, QUANTILES)
    return {
        "count": len(there),
        "mean": float(there.mean()),
        "least": float(there.min()),
        "most": float(there.max()),
        "quantiles": {f"{share:g}": float(value) for share, value in zip(QUANTILES, quantiles, strict=True)},
    }


def summary(values: Sequence[float]) -> dict[str, Any]:
    """The same of numbers that are not negative, with a histogram."""
    there = np.asarray(values, dtype=np.float64)
    there = there[np.isfinite(there)]
    return {**distribution(values), **({"histogram": histogram(there)} if len(there) else {})}


def histogram(values: Array) -> dict[str, Any]:
    """How many values lie between edges that go up by the same factor, and how many are zero.

    >>> histogram(np.array([0.0, 1.0, 1.05, 1.1]))
    {'edges': [1.0, 1.0594630943592953, 1.122462048309373], 'counts': [2, 1], 'zeros': 1}
    """
    positive = values[values > 0]
    if not len(positive):
        return {"edges": [], "counts": [], "zeros": len(values)}
    bins = np.floor(_PER_OCTAVE * np.log2(positive) + 1e-12).astype(np.int64)
    edges = [2.0 ** (number / _PER_OCTAVE) for number in range(int(bins.min()), int(bins.max()) + 2)]
    counts = np.bincount(bins - bins.min())
    return {"edges": edges, "counts": counts.tolist(), "zeros": len(values) - len(positive)}


def counts_between(found: dict[str, Any], edges: Array) -> Array:
    """The counts of a histogram between other edges; a bin that is cut gives each part its share of the octave.

    >>> counts_between({"edges": [1.0, 4.0], "counts": [6]}, np.array([1.0, 2.0, 4.0, 8.0])).tolist()
    [3.0, 3.0, 0.0]
    """
    below = np.concatenate([[0.0], np.cumsum(np.asarray(found["counts"], dtype=np.float64))])
    if len(below) == 1:
        return np.zeros(len(edges) - 1)
    return np.diff(np.interp(np.log2(edges), np.log2(found["edges"]), below))


def common_edges(histograms: Iterable[dict[str, Any]]) -> Array:
    """Edges between which all of these lie, as many an octave as new histograms have.

    >>> common_edges([{"edges": [1.0, 2.0]}, {"edges": [0.5, 1.0]}]).round(2)[[0, 12, 24]].tolist()
    [0.5, 1.0, 2.0]
    """
    ends = [edge for one in histograms for edge in one["edges"]]
    if not ends:
        return np.array([1.0, 2.0])
    low, high = (round(_PER_OCTAVE * math.log2(end)) for end in (min(ends), max(ends)))
    return np.array([2.0 ** (number / _PER_OCTAVE) for number in range(low, high + 1)])


def clip_factors(factors: Sequence[float]) -> dict[str, Any]:
    """The mean factor (alpha-bar), the mean distance from it (alpha-tilde), and how many are clipped at all.

    >>> clip_factors([1.0, 0.5])
    {'count': 2, 'mean': 0.75, 'spread': 0.25, 'least': 0.5, 'clipped': 0.5}
    """
    there = np.asarray(factors, dtype=np.float64)
    if not len(there):
        return {"count": 0}
    mean = float(there.mean())
    return {
        "count": len(there),
        "mean": mean,
        "spread": float(np.abs(there - mean).mean()),
        "least": float(there.min()),
        "clipped": float((there < 1).mean()),
    }
