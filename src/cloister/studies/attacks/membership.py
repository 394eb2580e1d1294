"""Membership inference: was a sample in the training data? Guessed by a score of it under the final model.

The loss alone: the smaller, the more likely a member (Yeom, Giacomelli, Fredrikson & Jha, "Privacy risk in machine
learning: analyzing the connection to overfitting", CSF 2018). By shadow models: `likelihood.py`. Curves are to be read
where false alarms are few (Carlini et al. 2022).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.integrate import trapezoid
from torch import Tensor

from cloister.auditing.bounds import at_least, at_most
from cloister.studies.attacks.found import Membership

_POINTS = 200
LOW = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is told."""
BY_LOSS, BY_RATIO = "loss", "likelihood ratio"
"""The scores, as pictures name them."""
_MISS = 0.025
"""On either side of an interval of 95 %."""

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def membership(attack: str, inside: Tensor, outside: Tensor, shadows: int = 0) -> Membership:
    """From the scores of members and of others: the larger, the more likely a member."""
    negative, positive = (scores.double().cpu().numpy() for scores in (outside, inside))
    false_positive, true_positive = roc(negative, positive)
    at = {f"{rate:g}": float(true_positive[false_positive <= rate].max(initial=0.0)) for rate in LOW}
    low = math.log10(max(1 / len(negative), 1e-6))
    wanted = np.concatenate([[0.0], np.logspace(low, 0, _POINTS)])
    places = np.searchsorted(false_positive, wanted, side="right") - 1
    return Membership(
        attack,
        shadows,
        [round(float(x), 6) for x in wanted],
        [round(float(true_positive[place]), 6) for place in places],
        float(trapezoid(true_positive, false_positive)),
        area_error(negative, positive),
        at,
        {name: interval(round(rate * len(positive)), len(positive)) for name, rate in at.items()},
        len(positive),
        len(negative),
    )


def interval(hits: int, of: int) -> list[float]:
    """The chances that so many hits leave possible at 95 % (Clopper & Pearson 1934)."""
    return [round(at_least(hits, of, _MISS), 6), round(at_most(hits, of, _MISS), 6)]


def roc(negative: Vector, positive: Vector) -> tuple[Vector, Vector]:
    """False and true positive rates at every threshold, from none to all."""
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([negative, positive]))[::-1]])
    false_positive = 1 - np.searchsorted(np.sort(negative), thresholds, side="left") / len(negative)
    true_positive = 1 - np.searchsorted(np.sort(positive), thresholds, side="left") / len(positive)
    return false_positive, true_positive


def area_error(negative: Vector, positive: Vector) -> float:
    """The standard error of the area under the curve (DeLong, DeLong & Clarke-Pearson 1988)."""
    if min(len(negative), len(positive)) < 2:
        return math.inf
    variances = [
        np.var(_below(other, one), ddof=1) / len(one) for one, other in ((positive, negative), (negative, positive))
    ]
    return float(np.sqrt(sum(variances)))


def _below(among: Vector, scores: Vector) -> Vector:
    """Which part of the others each score exceeds; what is equal counts half."""
    ordered = np.sort(among)
    sides = [np.searchsorted(ordered, scores, side=side) for side in ("left", "right")]
    places: Vector = (sides[0] + sides[1]) / (2 * len(among))
    return places
