"""Exact draws from Bin(m, 1/2): how many of m fair coins show heads.

Guarantee: given random bits, the law of a draw is exactly this one: no float decides anything.

How: let U be a uniform number with endlessly many bits and X the number of k with U >= CDF(k). Of U the first 63 bits
are drawn, and compared with those of CDF(k), a whole number of 2^-m: what differs is settled. Only where they are equal
(once in 10^15 draws) more bits are drawn and compared. One draw for all coins, where tossing them would take m/63.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from cloister.errors import expect
from cloister.random.streams import Streams

MOST_TRIALS = 2**24
_BITS = 63
_AT_ONCE = 2**14  # more coins are tossed in several turns: a table takes time with the square of their number


def fair_coins(count: int, trials: int, streams: Streams, device: torch.device, purpose: str, *position: int) -> Tensor:
    """`count` independent exact draws (int64) from Bin(trials, 1/2), under a place in the run.

    >>> draws = fair_coins(1000, 400, Streams(0), torch.device("cpu"), "noise", 1)
    >>> 198 < draws.double().mean().item() < 202
    True
    """
    expect(1 <= trials <= MOST_TRIALS, f"trials from 1 to {MOST_TRIALS}", trials, "choose a coarser grid")
    whole, rest = divmod(trials, _AT_ONCE)
    found = torch.zeros(count, dtype=torch.int64, device=device)
    for turn, coins in enumerate([*[_AT_ONCE] * whole, *[rest] * (rest > 0)]):
        bits = streams.protective_bits(count, device, purpose, *position, turn)
        found += _drawn(bits, coins, _BITS, partial(_more, streams, f"{purpose}/more", (*position, turn)))
    return found


def _more(streams: Streams, purpose: str, position: tuple[int, ...], place: int, times: int) -> int:
    return int(streams.protective_bits(1, torch.device("cpu"), purpose, *position, place, times).item())


def _drawn(bits: Tensor, trials: int, width: int, more: Callable[[int, int], int]) -> Tensor:
    """The draws that begin with these bits, `width` each; `more(place, times)` gives 63 further ones."""
    table, first = _table(trials, width, bits.device)
    found = torch.searchsorted(table, bits)
    left_open = (table[found.clamp(max=len(table) - 1)] == bits).nonzero().flatten().tolist()
    found += first
    for place in left_open:
        found[place] = _settled(int(bits[place]), trials, width, partial(more, place))
    return found


def _settled(bits: int, trials: int, width: int, more: Callable[[int], int]) -> int:
    """One draw that its first bits left open, by further ones. With `trials` bits a CDF is known to the last."""
    times = 0
    while width < trials:
        bits, width, times = bits << _BITS | more(times), width + _BITS, times + 1
        table = _thresholds(trials, width)
        if bisect_left(table, bits) == bisect_right(table, bits):
            break
    return bisect_right(_thresholds(trials, width), bits)


@lru_cache(maxsize=16)
def _table(trials: int, width: int, device: torch.device) -> tuple[Tensor, int]:
    """The thresholds that differ, one of those at either end included, and how many were left out before them."""
    table = _thresholds(trials, width)
    first = max(bisect_right(table, table[0]) - 1, 0)
    last = bisect_left(table, table[-1])
    return torch.tensor(table[first : last + 1], device=device), first


def _thresholds(trials: int, width: int) -> list[int]:
    """floor(2^width CDF(k)) for k = 0 .. trials - 1, in whole numbers.

    >>> _thresholds(3, 4)
    [2, 8, 14]
    """
    found, ways, below = [], 1, 0
    for k in range(trials):
        below += ways
        found.append((below << width) >> trials)
        ways = ways * (trials - k) // (k + 1)
    return found
