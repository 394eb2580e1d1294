"""Exact draws from the rounded normal law: K = round(sigma Z), where Z is an ideal standard normal number.

Guarantee: given random bits, K has exactly this law on all whole numbers. Not "up to floating point": no draw is
decided by arithmetic whose error could have decided otherwise. There is no largest draw.

Why it matters. For a whole number M (a sum of messages, in units of a grid), M + round(sigma Z) = round(M + sigma Z):
what is released is a rounding of the IDEAL Gaussian mechanism, so post-processing, and costs exactly what that costs.
What is computed as `float sum + float normal` is not: which floats can come out, with how many bits, depends on
the sum (Mironov 2012; Haney, Desfontaines, Hartman, Shrestha & Hay 2022).

How. By a ziggurat (Marsaglia & Tsang 2000), which is a theorem about real numbers. Below the curve F(x) = L e^(-x^2/2)
lie points (x, y). Layers cover them from -8 to 8: layer i, of 1023, has |x| < x_i and y_i < y < y_(i+1), where

    d_0 = 1/16,  y_0 = 0,  y_(i+1) = y_i + d_i,  x_i = 1 / (2 d_i),  F(x_i) <= y_i for i > 0,  y_1023 >= L

and every d_i is a multiple of 2^-30, chosen once and for all (`_layers`; L is as large as it may be). A draw takes

    10 bits, a number i; where it is 1023, a tail.
    In layer i: x = x_i S and y = y_i + d_i V, S uniform on (-1, 1), V on (0, 1), with endlessly many bits.
    Where y < F(x), x is the draw. Else: draw anew.
    In a tail: |x| = 8 - ln(U) / 8, either sign; where V < W e^(-(|x| - 8)^2 / 2), W = L e^(-32) / 4, x is the draw.
    Else: draw anew.

All layers are as likely and have the area 2 x_i d_i = 1, so that an x from -8 to 8 comes out with density 2^-10 F(x):
for every y below F(x), x is in the layer that has y, because |x| < x_i wherever F(x) > y_i >= F(x_i). In a tail, where
what is tried has the density 4 e^(-8 (|x| - 8)), an x comes out with 2^-10 times that times W e^(-(|x| - 8)^2 / 2),
which is 2^-10 F(x) as well. So the law of x is F over its integral: normal. And that it stays, however many tries came
to nothing before.

What makes it fast: 99.4 % of the draws lie where F(x) > y_(i+1), which |x| alone tells: any V would do, and none is
drawn. S has 54 bits at first, s (from -2^53 to 2^53 - 1), and sigma x is computed in float64 (`_at_once`). Elsewhere V
is drawn, 64 bits of it, and y compared with F(x) in float64 (`_judged`). What float64 cannot decide (of sigma x for
sigma = 2^24 about one in 4 * 10^6, of F next to none; tails), more bits of these same S and V decide, by mpmath's
interval arithmetic, with as many bits as it takes (`_settled`).

The errors. Taken for granted is that float64 is that of IEEE 754, and that exp, log and sqrt have a relative error of
at most 2^-45 (libraries promise 2^-52 or so). x_i is rounded once, its product with s, which is exact, once, and the
product with sigma once; S is in [s, s + 1) 2^-53, and x_i <= 8:

    |computed x - x|             <= 8 * 2^-53 + 8 * 2.01 * 2^-53
    |computed sigma x - sigma x| <= sigma (24.1 + 8.01) 2^-53 < sigma 2^-47.9

Where computed sigma x is nearer than 1/2 - sigma 2^-47 to a whole number, this is K, whatever bits follow. (Where sigma
< 2^-5, |sigma x| < 3/8: K is 0, and comes out as 0, also of numbers too small for float64.) Of what is compared, all
y_i and d_i are exact, and

    |computed F(x) - F(x)| <= L |x| e^(-x^2/2) 24.1 * 2^-53 + L e^(-x^2/2) 2^-44.9 < 2^-35
    |computed y - y|       <= 2^-43    (y < 512)

Where they are 2^-30 apart, float64 has compared them as real numbers would. Whether F(x) > y_(i+1) is told by |x| with
a margin of 2^-24, relative, and x_i is at least 1 + 2^-24 times where F is y_i. All of these are above 0.13, so that
both leave more than 2^-27, and errors of what they are computed from move them by less than 2^-32. In the last layer,
whose end is above L, no x is sure.
`tests/random/test_rounded_normal.py` looks at every layer with mpmath.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cloister.errors import expect
from cloister.random.streams import Streams

MOST_SIGMA = 2.0**44
"""Draws are whole numbers of float64: 2^53 / 2^44 = 512 standard deviations, which no bits of this world reach."""

_WORD, _HALF = 64, 1 << 63
_NUMBER = 10
"""Bits of a layer's number, the lowest of a word; those above are of S."""
_SIDE = _WORD - _NUMBER - 1
"""Bits of S beside its sign."""
_TAIL = 2**_NUMBER - 1
"""The last number, and how many layers there are."""
_END = 8.0
_TOP = 407.125
_MARGIN = 2.0**-30
_TRIED = 2.0**-38
"""More than W: a tail whose V is above is no draw."""
_BLOCK = 2**15
"""So many at a time, while they are in the processor's cache. Each block has bits of its own place in the run: with
another size a seed has other draws."""

Numbers = np.ndarray[Any, np.dtype[Any]]
First = Callable[[int, int], Numbers]
"""(which block, how many) -> words of 64 bits."""
More = Callable[..., Numbers]
"""(how many, *where) -> further words, other ones for every place."""


def rounded_normal(
    count: int, sigma: float, streams: Streams, purpose: str, *position: int, out: Tensor | None = None
) -> Tensor:
    """`count` independent exact draws of round(sigma Z), as whole numbers in float64, under a place in the run; in
    `out` where there is one, of as many numbers one behind the other.

    >>> draws = rounded_normal(1000, 40.0, Streams(0), "noise", 1)
    >>> bool((draws == draws.round()).all()), 36 < float(draws.std()) < 44
    (True, True)
    """
    expect(0 < sigma <= MOST_SIGMA, f"a sigma of at most {MOST_SIGMA:g} points of the grid", sigma, "coarsen the grid")
    found = torch.empty(count, dtype=torch.float64) if out is None else out

    def first(block: int, number: int) -> Numbers:
        return streams.protective_words(number, purpose, *position, block).numpy()

    def more(number: int, *place: int) -> Numbers:
        return streams.protective_words(number, f"{purpose}/more", *position, *place).numpy()

    _draw(found.view(count).numpy(), float(sigma), first, more)
    return found


def _draw(found: Numbers, sigma: float, first: First, more: More) -> None:
    """Turn by turn: what came to nothing is drawn anew, with bits of its own."""
    layers, work = _layers(), np.empty(min(len(found), _BLOCK))
    left_open, drawn = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    for block, start in enumerate(range(0, len(found), _BLOCK)):
        some = found[start : start + _BLOCK]
        words = first(block, len(some))
        there = _at_once(words, sigma, layers, some, work[: len(some)])
        left_open.append(there + start)
        drawn.append(words[there])
    where, words, turn = np.concatenate(left_open), np.concatenate(drawn), 0
    while len(where):
        heights, after = more(2 * len(where), turn).reshape(-1, 2).T  # in this order, a shorter vector begins alike
        found[where], again = _judged(words, heights, sigma, partial(_further, more, turn, where))
        where, words, turn = where[again], after[again], turn + 1


def _further(more: More, turn: int, where: Numbers, which: int, uniform: int, times: int) -> int:
    """64 further bits of S (`uniform` 0) or V (1), of one that is still open."""
    return int(more(1, turn, int(where[which]), uniform, times)[0]) + _HALF


def _at_once(words: Numbers, sigma: float, layers: _Layers, found: Numbers, distance: Numbers) -> Numbers:
    """Write the draws that |x| and float64 decide; which are left open.

    Nothing needs new memory twice: new memory takes longer than what is computed in it.
    """
    numbers = np.bitwise_and(words, _TAIL)
    real = layers.widths.take(numbers, out=distance, mode="clip")  # without clipping, NumPy would copy `out`
    inside = layers.below.take(numbers, out=found, mode="clip")
    real *= np.right_shift(words, _NUMBER, out=numbers)
    sure = np.abs(real, out=numbers.view(np.float64)) < inside
    real *= sigma
    np.rint(real, out=found)
    distance = np.subtract(real, found, out=real)  # exact
    np.abs(distance, out=distance)
    sure &= distance < 0.5 - sigma * 2.0**-47
    return np.flatnonzero(~sure)


def _judged(
    words: Numbers, heights: Numbers, sigma: float, further: Callable[[int, int, int], int]
) -> tuple[Numbers, Numbers]:
    """Draws of any layers, and which of them are above the curve: they are none."""
    layers, numbers, sides = _layers(), words & _TAIL, words >> _NUMBER
    x, v, tails = layers.widths[numbers] * sides, heights * 2.0**-_WORD + 0.5, numbers == _TAIL
    y, curve = layers.floors[numbers] + v * layers.heights[numbers], _TOP * np.exp(-0.5 * x * x)
    real = x * sigma
    draws = np.rint(real)
    sure = (y < curve - _MARGIN) & (np.abs(real - draws) < 0.5 - sigma * 2.0**-47) & ~tails
    above = np.where(tails, v > _TRIED, y > curve + _MARGIN)
    for which in np.flatnonzero(~(sure | above)).tolist():
        place = int(numbers[which]), int(sides[which]), int(heights[which]) + _HALF
        settled = _settled(*place, sigma, partial(further, which))
        above[which] = settled is None
        draws[which] = 0 if settled is None else settled
    return draws, above


def _settled(number: int, s: int, v: int, sigma: float, further: Callable[[int, int], int]) -> int | None:
    """One draw, by intervals that hold all that S and V can still be; by further bits where they must. None: above the
    curve."""
    from mpmath.ctx_iv import MPIntervalContext  # seldom needed, and slow to import

    intervals, bits_of_s, bits_of_v, times = MPIntervalContext(), _SIDE, _WORD, 0  # threads draw at the same time
    while True:
        intervals.prec = bits_of_v + 128
        point = _in_tail if number == _TAIL else partial(_in_layer, number)
        found = point(intervals, s, bits_of_s, intervals.mpf([v, v + 1]) / intervals.mpf(2) ** bits_of_v)
        if found is not None:
            x, y, curve = found
            below, draw = y < curve, _rounded(intervals.mpf(sigma) * x)  # below: None where intervals overlap
            if below is False:
                return None
            if below and draw is not None:
                return draw
        s, v, times = s << _WORD | further(0, times), v << _WORD | further(1, times), times + 1
        bits_of_s, bits_of_v = bits_of_s + _WORD, bits_of_v + _WORD


def _in_layer(number: int, intervals: Any, s: int, bits: int, v: Any) -> tuple[Any, Any, Any]:
    """x, y and the curve there, as intervals."""
    layers = _layers()
    floor, height = (intervals.mpf(float(of[number])) for of in (layers.floors, layers.heights))
    x = intervals.mpf([s, s + 1]) / intervals.mpf(2) ** bits / (2 * height)
    return x, floor + height * v, _TOP * intervals.exp(-(x**2) / 2)


def _in_tail(intervals: Any, s: int, bits: int, v: Any) -> tuple[Any, Any, Any] | None:
    """x, V and what it must be below; None where U, all bits of S but its sign, can still be zero."""
    u = s % 2**bits
    if not u:
        return None
    beyond = -intervals.log(intervals.mpf([u, u + 1]) / intervals.mpf(2) ** bits) / _END
    most = _TOP * intervals.exp(-(intervals.mpf(_END) ** 2) / 2) / (_END / 2)
    x = _END + beyond
    return x if s >= 0 else -x, v, most * intervals.exp(-(beyond**2) / 2)


def _rounded(interval: Any) -> int | None:
    """The whole number that all of an interval is rounded to; None where there are several."""
    from mpmath.libmp import to_rational

    low, high = (math.floor(Fraction(*to_rational(end)) + Fraction(1, 2)) for end in interval._mpi_)
    return low if low == high else None


class _Layers(NamedTuple):
    """By number. The tail, which is last, has no width, so that nothing in it is ever sure."""

    widths: Numbers
    """x_i, in units of the last bit of S."""
    below: Numbers
    """|x| below which x is below the curve, whatever V is."""
    floors: Numbers
    """y_i, exactly."""
    heights: Numbers
    """d_i, exactly."""


@cache
def _layers() -> _Layers:
    heights, floors, below = [1 / (2 * _END)], [0.0], []
    while True:
        floors.append(floors[-1] + heights[-1])
        reached = math.sqrt(2 * math.log(max(_TOP / floors[-1], 1.0)))
        below.append(reached * (1 - 2.0**-24))
        if len(heights) == _TAIL:
            break
        heights.append(math.floor(2.0**30 / (2 * reached * (1 + 2.0**-24))) / 2.0**30)
    widths = [1 / (2 * height) for height in heights]
    columns = ([*widths, 0.0], [*below, 0.0], floors, [*heights, 0.0])
    widths_of, *others = (np.array(column) for column in columns)
    return _Layers(widths_of * 2.0**-_SIDE, *others)
