"""Messages and noise on a grid: what makes the proof, which is for real numbers, one about what a computer does.

A release is round(M + N), coordinate by coordinate, in units of a grid g, where M is a sum of whole numbers and N is an
IDEAL normal vector (`random/rounded_normal.py` draws exactly this). Rounding is post-processing of the Gaussian
mechanism M + N, so that it costs, to both accountants and with any sampling, exactly what that costs, if M moves by no
more than was priced. Three things see to that:

* Clients' messages (`on_grid`). Each is rounded TOWARD ZERO to whole multiples of g, so that no coordinate grows and
  neither does the norm. Whatever floating point did before, the norm is then looked at in whole numbers, exactly, and
  one above the bound S is made shorter. A sum of messages is exact, in any order: adding or removing a client moves it
  by at most S, and replacing one by 2 S. Nothing is added to the price.
* Sums over samples whose parts are not seen one by one (`nearest`): the sum is rounded as a whole, and two sums of
  distance D are then at most D + sqrt(m) g apart, where m is how many numbers they have. Noise is as many times wider
  (`slack`): the price stays, and the noise pays for it.
* g is a power of two that follows from public numbers alone (the bound, the noise), never from data.

A float64 sum of two multiples of g is the exact sum, rounded once where it is beyond 2^53 g, which is post-processing
again; so is whatever becomes of it in float32.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

_LEVELS = 24
"""Bits of a message: it has at most 2^24 points in any direction, so that float32 holds it, and its square norm (below
2^48) is exact in float64. 2^29 of them can be added exactly."""
_FINEST = -140
"""The exponent of the finest grid: float32 has no number below 2^-149."""
_WIDEST = 34
"""The noise has at most 2^34 points a deviation: with more, too many draws would take more than float64."""

STEP_GRID = 2.0**-26
"""The grid of sums over samples, in units of what one sample can move them by."""


def grid_of(l2: float, deviation: float) -> float:
    """The grid for messages of norm at most `l2` under noise of this deviation: about 2^-24 of the norm.

    >>> grid_of(1.0, 1.3) == 2.0**-23, grid_of(1.0, 2.0**40) == 2.0**7
    (True, True)
    """
    return 2.0 ** max(math.frexp(l2)[1] - _LEVELS, math.frexp(deviation)[1] - _WIDEST, _FINEST)


def on_grid(message: Tensor, grid: float, l2: float) -> Tensor:
    """A message [m] in float64, rounded toward zero to multiples of the grid, of norm at most `l2`: exactly.

    Points are whole numbers. As long as the sum of their squares is below 2^53, it is exact in float64, in any order of
    addition; and what is found to be more than the bound (below 2^48) is more. What is longer is made shorter by more
    than all roundings of that together could make it longer, and rounded toward zero once more.

    >>> on_grid(torch.tensor([0.3, -0.3]), 0.25, 1.0), on_grid(torch.tensor([3.0, 4.0]), 2.0**-20, 1.0).norm() <= 1
    (tensor([ 0.2500, -0.2500], dtype=torch.float64), tensor(True))
    """
    most = float(math.floor(Fraction(l2 / grid) ** 2))  # division by a power of two is exact
    points = (message.double() / grid).trunc_().clamp(-(2.0**25), 2.0**25)  # beyond which nothing is within the bound
    square = (points * points).sum()
    shorter = math.sqrt(most) * (1 - 2.0**-30 - message.shape[-1] * 2.0**-52) / square.sqrt()
    factor = torch.where(square <= most, 1.0, shorter)  # once, and of whole numbers, 1 makes no difference
    return points.mul_(factor).trunc_().mul_(grid)


def nearest(total: Tensor, unit: Tensor | float, grid: float) -> Tensor:
    """A sum in units of what one sample can move it by, in float64, rounded to the grid."""
    return (total.double() / unit).div_(grid).round_().mul_(grid)


def slack(numbers: int, grid: float, samples: int = 1) -> float:
    """By how much rounding a sum of so many numbers to the grid can move two of them apart, in units of one sample's
    part; the division before it, of a sum over so many samples, included."""
    return math.sqrt(numbers) * grid + samples * 2.0**-50


def points_of(deviation: float, grid: float, factor: float = 1.0) -> float:
    """A deviation in points of the grid, at least: products are rounded up, and more noise is post-processing."""
    return math.nextafter(math.nextafter(deviation * factor, math.inf) / grid, math.inf)
