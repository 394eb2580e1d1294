"""Membership inference: was a sample in the training data? Guessed by its loss under the final model.

Yeom, Giacomelli, Fredrikson & Jha, "Privacy risk in machine learning: analyzing the connection to overfitting",
CSF 2018. Curves are to be read where false alarms are few (Carlini et al. 2022). What (epsilon, delta) allows at most:

    TPR <= exp(epsilon) FPR + delta     and     1 - FPR <= exp(epsilon) (1 - TPR) + delta

for a sample, or for a client and so for any sample of it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.integrate import trapezoid
from torch import Tensor

from cloister.client.losses import Loss
from cloister.studies.attacks.found import Membership

_POINTS, _AT_ONCE = 200, 1000
LOW = (0.001, 0.01, 0.1)
"""False positive rates at which the true positive rate is told."""

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def membership(inside: Tensor, outside: Tensor) -> Membership:
    """From the losses of members and of others: the smaller, the more likely a member."""
    negative, positive = (-t.double().cpu().numpy() for t in (outside, inside))
    false_positive, true_positive = roc(negative, positive)
    at = {f"{rate:g}": float(true_positive[false_positive <= rate].max(initial=0.0)) for rate in LOW}
    area = float(trapezoid(true_positive, false_positive))
    low = math.log10(max(1 / len(negative), 1e-6))
    wanted = np.concatenate([[0.0], np.logspace(low, 0, _POINTS)])
    places = np.searchsorted(false_positive, wanted, side="right") - 1
    return Membership(
        [round(float(x), 6) for x in wanted],
        [round(float(true_positive[place]), 6) for place in places],
        area,
        at,
        len(positive),
        len(negative),
    )


def roc(negative: Vector, positive: Vector) -> tuple[Vector, Vector]:
    """False and true positive rates at every threshold, from none to all."""
    thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([negative, positive]))[::-1]])
    false_positive = 1 - np.searchsorted(np.sort(negative), thresholds, side="left") / len(negative)
    true_positive = 1 - np.searchsorted(np.sort(positive), thresholds, side="left") / len(positive)
    return false_positive, true_positive


def losses(module: torch.nn.Module, loss: Loss, inputs: Tensor, labels: Tensor) -> Tensor:
    """Of every sample by itself; the module takes inputs as they are stored."""
    pieces = range(0, len(labels), _AT_ONCE)
    with torch.no_grad():
        found = [loss(module(inputs[at : at + _AT_ONCE]), labels[at : at + _AT_ONCE]) for at in pieces]
    joined = torch.cat(found)
    return joined.flatten(1).mean(1) if joined.dim() > 1 else joined
