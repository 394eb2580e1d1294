"""Harrell's concordance, which torchmetrics does not have."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROWS = 1024
"""How many events are compared with everybody at a time."""


def concordance(risks: Tensor, times: Tensor, events: Tensor) -> float:
    """Of all pairs in which it is known who had the event first, the share in which that one has the larger risk.

    It is known where the earlier time is that of an event; also where both times are the same and only one is that of
    an event, since the other one was still without it. Two events at the same time are no pair. Equal risks count one
    half. NaN where there is no pair, or where a risk is not a number.
    """
    if bool(risks.isnan().any()):
        return math.nan
    happened = events > 0
    pairs = right = 0.0
    for rows in torch.split(happened.nonzero().flatten(), _ROWS):
        time, risk = times[rows].unsqueeze(1), risks[rows].unsqueeze(1)
        known = (times > time) | ((times == time) & ~happened)
        pairs += float(known.sum())
        right += float((known & (risks < risk)).sum()) + 0.5 * float((known & (risks == risk)).sum())
    return right / pairs if pairs else math.nan
