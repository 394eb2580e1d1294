"""Exact draws from the rounded normal law: K = round(sigma Z), where Z is an ideal standard normal number.

Guarantee: given random bits, K has exactly this law on all whole numbers. Not "up to floating point": no draw is
decided by arithmetic whose error could have decided otherwise. There is no largest draw.

Why it matters. For a whole number M (a sum of messages, in units of a grid), M + round(sigma Z) = round(M + sigma Z):
what is released is a rounding of the IDEAL Gaussian mechanism, so post-processing, and costs exactly what that costs.
What is computed as `float sum + float normal` is not: which floats can come out, with how many bits, depends on
the sum (Mironov 2012; Haney, Desfontaines, Hartman, Shrestha & Hay 2022).

How. Let U and V be uniform on (0, 1) with endlessly many bits. Box and Muller's sqrt(-2 ln U) cos(2 pi V), and the same
with sin, are two independent standard normal numbers: a theorem about real numbers. Of U and V the first 63 bits are
drawn, p and q, and both products are computed in float64, with an error of at most E (below). Where [x - E, x + E] lies
between two halves of whole numbers, K is known, whatever bits follow. Elsewhere (for sigma = 2^24 about once in 10^6
draws; or in the tail, where p is so small that its bits say little) more bits of these same U and V are drawn, and
mpmath's interval arithmetic decides, with as many bits as it takes.

The error E of x = sigma r cos(t), where r^2 = -2 ln U and t = 2 pi V. Taken for granted is that float64 is that of IEEE
754, that log has a relative error of at most 2^-49, and sin and cos an absolute one (8 units in the last place;
libraries promise 1 to 4, and `tests/random/test_rounded_normal.py` compares with mpmath).

    |ln U - ln(float(p) 2^-63)|  <= d = 2^-53 + 1/p    (U is in [p, p + 1) 2^-63, and float(p) within 2^-53 of p)
    |computed r - r|             <= r (2^-49 + 2^-52) + 2.01 d / r    (|sqrt a - sqrt b| <= |a - b| / sqrt a)
    |computed t - t|             <= 2 pi (3.01 * 2^-53 + 2^-63) < 2^-48.6
    |computed cos t - cos t|     <= 2^-48.6 + 2^-49 < 2^-47.7
    |x - sigma r cos t|          <= sigma (2^-46.8 r + 2.02 (2^-53 + 1/p) / r)    products included

E = sigma (2^-46 r + (2^-51 + 4/p) / r) is 1.7 times that at least. Where 2^-7 <= r <= 4.5, so that p > 2^48, it is at
most sigma 2^-43, which is looked at first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.errors import expect
from cloister.random.streams import Streams

MOST_SIGMA = 2.0**44
"""Draws are whole numbers of float64: 2^53 / 2^44 = 512 standard deviations, which no bits of this world reach."""

_BITS = 63
_PAIRS = 2**14
"""So many at a time, while they are in the processor's cache."""
_SURE = 2.0**-43
_RADII = (2.0**-7, 4.5)

More = Callable[[int, int, int], int]
"""(which pair, 0 for the radius or 1 for the angle, how many times before) -> 63 further bits of that number."""


def rounded_normal(count: int, sigma: float, streams: Streams, purpose: str, *position: int) -> Tensor:
    """`count` independent exact draws of round(sigma Z), as whole numbers in float64, under a place in the run.

    >>> draws = rounded_normal(1000, 40.0, Streams(0), "noise", 1)
    >>> bool((draws == draws.round()).all()), 36 < float(draws.std()) < 44
    (True, True)
    """
    expect(0 < sigma <= MOST_SIGMA, f"a sigma of at most {MOST_SIGMA:g} points of the grid", sigma, "coarsen the grid")
    pairs = (count + 1) // 2
    bits = streams.protective_bits(2 * pairs, torch.device("cpu"), purpose, *position)

    def more(pair: int, which: int, times: int) -> int:
        place = (*position, pair, which, times)
        return int(streams.protective_bits(1, torch.device("cpu"), f"{purpose}/more", *place).item())

    return _drawn(bits[:pairs], bits[pairs:], sigma, more)[:count]


def _drawn(radii: Tensor, angles: Tensor, sigma: float, more: More, bits: int = _BITS) -> Tensor:
    """The draws [2 pairs] of pairs whose uniform numbers begin with these bits: all cosines, then all sines.

    With fewer than 63 bits, for tests, everything is decided by intervals.
    """
    pairs = len(radii)
    found = torch.empty(2, pairs, dtype=torch.float64)
    for first in range(0, pairs, _PAIRS):
        some = slice(first, min(first + _PAIRS, pairs))
        left_open = torch.arange(some.start, some.stop)
        if bits == _BITS:
            left_open = _computed(radii[some], angles[some], sigma, found[:, some]) + first
        for pair in left_open.tolist():
            both = _settled(int(radii[pair]), int(angles[pair]), sigma, bits, partial(more, pair))
            found[:, pair] = torch.tensor(both, dtype=torch.float64)
    return found.flatten()


def _computed(p: Tensor, q: Tensor, sigma: float, found: Tensor) -> Tensor:
    """Write the draws [2, k] that float64 decides; which pairs it leaves open.

    NumPy has the faster logarithm and root, torch the faster sine and cosine; nothing needs new memory twice.
    """
    draws, angle = found.numpy(), q.double().mul_(2 * math.pi * 2.0**-_BITS)
    real = np.empty(draws.shape)
    torch.cos(angle, out=torch.from_numpy(real[0]))
    torch.sin(angle, out=torch.from_numpy(real[1]))
    with np.errstate(divide="ignore", invalid="ignore"):  # where p is 0, which is left open
        radius = p.numpy().astype(np.float64)
        radius *= 2.0**-_BITS
        np.log(radius, out=radius)
        radius *= -2
        np.sqrt(radius, out=radius)
        real *= np.multiply(radius, sigma, out=angle.numpy())
        np.rint(real, out=draws)
        real -= draws  # exact
    distance = np.abs(real, out=real)
    low, high = _RADII
    unsure = (distance > 0.5 - sigma * _SURE).any(0)
    unsure |= radius < low
    unsure |= radius > high
    pairs = torch.from_numpy(np.flatnonzero(unsure))
    if not len(pairs):
        return pairs
    r = torch.from_numpy(radius)[pairs].abs()  # the root of -0 is -0, and an error of minus infinity would be none
    error = sigma * (2.0**-46 * r + (2.0**-51 + 4 / p[pairs].double()) / r)
    sure = (torch.from_numpy(distance)[:, pairs] < 0.5 - error).all(0)  # not where something is infinite, or no number
    return pairs[~sure]


def _settled(p: int, q: int, sigma: float, bits: int, more: Callable[[int, int], int]) -> tuple[int, int]:
    """Both draws of one pair, by intervals that hold all that U and V can still be; by further bits where they must."""
    from mpmath.ctx_iv import MPIntervalContext  # seldom needed, and slow to import

    intervals, times = MPIntervalContext(), 0  # of its own: threads draw at the same time
    while True:
        intervals.prec = bits + 128
        if p:
            u, v = (intervals.mpf([n, n + 1]) / intervals.mpf(2) ** bits for n in (p, q))
            radius, angle = intervals.mpf(sigma) * intervals.sqrt(-2 * intervals.log(u)), 2 * intervals.pi * v
            cosine = _rounded(radius * intervals.cos(angle))
            sine = _rounded(radius * intervals.sin(angle))
            if cosine is not None and sine is not None:
                return cosine, sine
        p, q = p << _BITS | more(0, times), q << _BITS | more(1, times)
        bits, times = bits + _BITS, times + 1


def _rounded(interval: Any) -> int | None:
    """The whole number that all of an interval is rounded to; None where there are several."""
    from mpmath.libmp import to_rational

    low, high = (math.floor(Fraction(*to_rational(end)) + Fraction(1, 2)) for end in interval._mpi_)
    return low if low == high else None
