"""Exact draws from the discrete Gaussian: weight e^(-x^2 / 2 sigma^2) on every whole number x.

Guarantee: given random bits, the law of a draw is exactly this one: no float decides anything. Privacy that is
proven for the discrete Gaussian (`privacy.discrete`) holds for what is drawn here.

How: let U be a uniform number with endlessly many bits and X the smallest k with U < CDF(k). Of U the first 63 bits
are drawn, u, and compared with floor(2^63 CDF(k)): a larger or smaller u settles it, whatever follows. Only where u
equals one of them (once in 10^15 draws, or in the tails) more bits are drawn and compared, until it is settled.

The thresholds come from decimal arithmetic with errors that are bounded: where a bound does not exclude another
whole number, more digits are taken.
"""

from __future__ import annotations

import decimal
import math
from bisect import bisect_left
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.errors import expect
from cloister.random.streams import Streams

MOST_SIGMA = 2.0**17  # a table of 18 sigma entries: some 20 MB, and a few seconds to build
LEAST_SIGMA = 0.01
_BITS = 63
_GUIDE_BITS = 20  # four megabytes: with more, a core's cache would not hold it
_BLOCK = 2**15

Integers = np.ndarray[Any, np.dtype[Any]]


def discrete_gaussian(
    count: int, sigma: float, streams: Streams, device: torch.device, purpose: str, *position: int
) -> Tensor:
    """`count` independent exact draws (int64) with parameter sigma, under a place in the run.

    >>> draws = discrete_gaussian(1000, 2.5, Streams(0), torch.device("cpu"), "noise", 1)
    >>> 2.2 < draws.double().std().item() < 2.8
    True
    """
    fine = LEAST_SIGMA <= sigma <= MOST_SIGMA
    remedy = "its table would be too large, so take fewer bits or more shares" if sigma > 1 else "use a finer grid"
    expect(fine, f"a sigma from {LEAST_SIGMA:g} to {MOST_SIGMA:g} units of the grid", sigma, remedy)
    bits = streams.protective_bits(count, device, purpose, *position)

    def more(place: int, times: int) -> int:
        tag = f"{purpose}/more"
        return int(streams.protective_bits(1, torch.device("cpu"), tag, *position, place, times).item())

    return _drawn(bits, float(sigma), _BITS, more)


def _drawn(bits: Tensor, sigma: float, width: int, more: Callable[[int, int], int]) -> Tensor:
    """The draws that begin with these bits, `width` each; `more(place, times)` gives 63 further ones."""
    table, guide = _table(sigma, width, bits.device)
    if bits.is_cuda:
        found = torch.searchsorted(table, bits)
        left_open = (table[found] == bits).nonzero().flatten().tolist()
    else:
        places, left_open = _places(bits.numpy(), table.numpy(), guide.numpy(), width)
        found = torch.from_numpy(places)
    found -= len(table) // 2
    for place in left_open:
        found[place] = _settled(int(bits[place]), sigma, width, partial(more, place))
    return found


def _places(bits: Integers, table: Integers, guide: Integers, width: int) -> tuple[Integers, list[int]]:
    """How many thresholds lie below each, and which equal one. Most need no search: their first bits tell."""
    found, left_open = np.empty_like(bits), []
    shift = width - (len(guide) - 1).bit_length()
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        places = guide.take(block >> shift)
        unsure = np.flatnonzero(places < 0)
        searched = table.searchsorted(block[unsure])
        left_open += (unsure[table[searched] == block[unsure]] + start).tolist()
        places[unsure] = searched
        found[start : start + _BLOCK] = places
    return found, left_open


def _settled(bits: int, sigma: float, width: int, more: Callable[[int], int]) -> int:
    """One draw that its first bits left open, by further ones."""
    times = 0
    while True:
        bits, width, times = bits << _BITS | more(times), width + _BITS, times + 1
        table = _thresholds(sigma, width)
        place = bisect_left(table, bits)
        if place == len(table) or table[place] != bits:
            return place - len(table) // 2


@lru_cache(maxsize=8)
def _table(sigma: float, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The thresholds, and for each beginning of the bits the place among them, or -1 where it takes all bits."""
    table = torch.tensor(_thresholds(sigma, width))
    short = min(width, _GUIDE_BITS)
    cells = torch.arange(2**short) << (width - short)
    first = torch.searchsorted(table, cells)
    last = torch.searchsorted(table, cells + (1 << (width - short)) - 1, right=True)
    return table.to(device), torch.where(first == last, first, -1).to(device, torch.int32)


def _thresholds(sigma: float, width: int) -> list[int]:
    """floor(2^width CDF(k)) for all k at which it is neither 0 nor 2^width - 1, and for one more at either end.

    By symmetry CDF(-x) is the tail from x on, and CDF(x - 1) is 1 minus that; no CDF is a fraction of 2^width.
    """
    digits = 50 + width // 3
    tails = _tails(sigma, width, digits)
    while tails is None:
        digits *= 2
        tails = _tails(sigma, width, digits)
    return [*reversed(tails), *(2**width - 1 - tail for tail in tails)]


def _tails(sigma: float, width: int, digits: int) -> list[int] | None:
    """floor(2^width P(X >= x)) for x = 1, 2, ... down to the first 0; None where so many digits leave one open.

    Every operation of `decimal` is rounded correctly, by a factor of 1 +- u at most. The weight at x is a product of
    ratios, each a product of x equal ones: its factor is within (1 +- u)^(4 (x+1)^2 (1 + 1/sigma^2)), so within 1 +- e
    below, and sums of positive numbers and a quotient of two of them stay within 1 +- 4e.
    """
    with decimal.localcontext(decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)):
        variance = Decimal(sigma) ** 2
        ratio, shrink = (-1 / (2 * variance)).exp(), (-1 / variance).exp()
        weights, least = [Decimal(1)], Decimal(10) ** (30 - digits)
        while weights[-1] >= least:
            weights.append(weights[-1] * ratio)
            ratio *= shrink
        # What was left out falls at least as fast as a geometric series with the ratio reached.
        beyond = weights[-1] * ratio / (1 - ratio)
        sums, total = [], Decimal(0)
        for weight in reversed(weights[1:]):
            total += weight
            sums.append(total)
        scale = Decimal(2) ** width / (1 + 2 * total)
        error = Decimal(math.ceil(100 * len(weights) ** 2 * (1 + sigma**-2))) * Decimal(10) ** (1 - digits)
        slack = error * 2**width + beyond * scale
        found = []
        for tail in reversed(sums):
            middle = tail * scale
            low, high = int(middle - slack), int(middle + slack)
            if low != high:
                return None
            found.append(low)
            if not low:
                return found
        return None
