"""To what norm a sample's gradient is clipped in private steps: a constant, or one that follows what was seen before.

A threshold that follows the data asks them something beside the gradient, in every step and of the same batch. The
answer is a number with noise of its own, and the two queries together are one Gaussian release of less noise:

    1 / worth^2 = 1 / z^2 + 1 / z_n^2

where z is the gradient's noise multiplier and z_n the query's. The threshold of a step comes from steps before it,
whose answers were paid for; the step's own batch has no say in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cloister.client.gradient_median import ReleasedNumber
from cloister.core import Settings
from cloister.core.noise_grid import nearest
from cloister.errors import expect, expect_positive, expect_share

Noised = Callable[[Tensor, Tensor | float, Tensor], Tensor]
"""(sum, what one sample can move it by, normal noise scaled to z) -> the sum, with noise of z times that"""

Follow = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Noised], Tensor]
"""(threshold [1], norms [b], which are real [b], normal noise scaled to z [1], expected batch, how noise is added) ->
threshold [1]"""


def continuous(total: Tensor, unit: Tensor | float, noise: Tensor) -> Tensor:
    """In the floating point of the sum."""
    return total + unit * noise


def rounded(grid: float, total: Tensor, unit: Tensor | float, noise: Tensor) -> Tensor:
    """In float64 and on a grid: the sum of two of its points is exact, or rounded once, as any release may be."""
    return (nearest(total, unit, grid) + noise).mul_(unit).to(total.dtype)


@dataclass(frozen=True)
class Threshold:
    """Where it starts, how it follows (None: it does not), and what a step is worth with noise multiplier z."""

    name: str
    settings: Settings
    start: float
    follow: Follow | None
    worth: Callable[[float], float]
    released: ReleasedNumber | None = None
    """What sets it before the first round, where a query does."""


def fixed(clip_norm: float) -> Threshold:
    """Always the same, and public: no query."""
    expect_positive("clip_norm", clip_norm, "choose the norm to which a sample's gradient is clipped")
    return Threshold("fixed", {"clip_norm": clip_norm}, clip_norm, None, lambda noise: noise)


def released(number: ReleasedNumber) -> Threshold:
    """One that a query of its own sets before the first round (`gradient_median.py`), and that stays: steps ask
    nothing beside the gradient."""
    expect_positive("clip_norm", number.value, "the norm that is used where nothing was asked")
    return Threshold("released", {"clip_norm": number.value}, number.value, None, lambda noise: noise, number)


def repaired(start: float, norm_bound: float, alpha: float = 1.0, floor: float = 0.01, query: float = 5.0) -> Threshold:
    """alpha times the mean norm of the gradients, each taken for at most a public `norm_bound`, R.

    n = (sum of min(||g_i||, R) + N(0, (query z R)^2)) / L;  C <- alpha n, between `floor` and R. One sample moves the
    sum by at most R, whatever C is, so nothing in this recursion can feed on itself.
    """
    _expect_range(start, floor, norm_bound)
    expect_positive("alpha", alpha, "1 clips to the mean norm")
    expect_positive("query_noise", query, "noise of the query in multiples of the gradient's; 5 costs 2 percent")

    def follow(
        now: Tensor, norms: Tensor, real: Tensor, noise: Tensor, expected: Tensor, noised: Noised = continuous
    ) -> Tensor:
        total = noised(norms.clamp(max=norm_bound).sum(), query * norm_bound, noise)
        return (alpha * total / expected).clamp(floor, norm_bound)

    settings = {"start": start, "norm_bound": norm_bound, "alpha": alpha, "floor": floor, "query": query}
    return Threshold("repaired", settings, start, follow, _beside(query))


def as_written(start: float, alpha: float = 1.0, floor: float = 1e-4, most: float = math.inf) -> Threshold:
    """The printed recursion of Adap DP-FL: C <- alpha |(sum of min(||g_i||, C) + N(0, (z C)^2)) / L|, above a `floor`.

    Norms are cut at C itself, so that without noise C can never grow, and with it drifts to zero: the floor is what
    keeps it from there. The query has the gradient's own noise multiplier.
    """
    _expect_range(start, floor, most)
    expect_positive("alpha", alpha, "1 clips to the mean norm")

    def follow(
        now: Tensor, norms: Tensor, real: Tensor, noise: Tensor, expected: Tensor, noised: Noised = continuous
    ) -> Tensor:
        total = noised(torch.minimum(norms, now).sum(), now, noise)
        return (alpha * total / expected).abs().clamp(floor, most)

    settings = {"start": start, "alpha": alpha, "floor": floor, "most": most}
    return Threshold("as_written", settings, start, follow, _beside(1.0))


def quantile(
    start: float, share: float = 0.5, lr: float = 0.2, query: float = 5.0, floor: float = 1e-3, most: float = 1e3
) -> Threshold:
    """The norm within which a `share` of the gradients are (Andrew et al. 2021), followed geometrically.

    b = (sum of (1{||g_i|| <= C} - 1/2) + N(0, (query z / 2)^2)) / L + 1/2;  C <- C exp(-lr (b - share)). One sample
    moves the sum by 1/2.
    """
    _expect_range(start, floor, most)
    expect_share("quantile", share, "0.5 clips half of the gradients")
    expect_positive("clip_lr", lr, "0.2 is usual")
    expect_positive("query_noise", query, "noise of the query in multiples of the gradient's; 5 costs 2 percent")

    def follow(
        now: Tensor, norms: Tensor, real: Tensor, noise: Tensor, expected: Tensor, noised: Noised = continuous
    ) -> Tensor:
        within = torch.where(real, (norms <= now).to(norms.dtype) - 0.5, 0.0)
        found = noised(within.sum(), query / 2, noise) / expected + 0.5
        return (now * torch.exp(-lr * (found.clamp(0, 1) - share))).clamp(floor, most)

    settings = {"start": start, "share": share, "lr": lr, "query": query, "floor": floor, "most": most}
    return Threshold("quantile", settings, start, follow, _beside(query))


def _beside(query: float) -> Callable[[float], float]:
    """What noise multiplier z is worth when another query has `query` times as much."""
    return lambda noise: noise / math.sqrt(1 + 1 / query**2)


def _expect_range(start: float, floor: float, most: float) -> None:
    expect_positive("floor", floor, "a threshold of zero would clip everything away")
    expect_positive("clip_norm", start, "the threshold to start from")
    expect_positive("norm_bound", most, "the most that a threshold may come to", or_infinite=True)
    expect(
        floor <= start <= most,
        f"a threshold to start from between {floor:g} and {most:g}",
        start,
        "choose another, or other limits",
    )
