"""Who is drawn: coins and subsets, exact and at a cost that follows what is drawn, not what it is drawn from."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

Draws = Callable[[int, int], Tensor]
"""(how many, which batch of them) -> protective draws: uniform from [0, 1) for coins, whole numbers for subsets."""


def bernoulli_indices(sampling_rate: float, coins: int, uniform: Draws) -> Tensor:
    """Which of so many independent coins of probability `sampling_rate` show heads, in rising order.

    Instead of tossing every coin, the gaps between heads are drawn. Of independent coins, the number of tails before
    the next head is at least g with probability (1 - rate)^g, whatever came before; and so is
    floor(ln U / ln(1 - rate)) for a uniform U in (0, 1], because it is at least g just when U <= (1 - rate)^g. Hence
    the law is that of the coins. In floating point U is a multiple of 2^-53, and that, with the rounding of the
    logarithms, moves each of these probabilities by about 2^-53, as it would that of a coin.
    """
    if sampling_rate == 1:
        return torch.arange(coins)
    expected = sampling_rate * coins
    batch = int(expected + 4 * math.sqrt(expected)) + 8  # seldom too few
    found: list[Tensor] = []
    last, draws = -1.0, 0
    while last < coins:
        random = 1 - uniform(batch, draws).numpy()
        with np.errstate(over="ignore"):  # a gap too large for a number is infinite: no head follows
            gaps = np.floor(np.log(random) / math.log1p(-sampling_rate))
        places = last + np.cumsum(gaps + 1)  # whole numbers, exact up to 2^53 and so up to the last coin
        found.append(torch.from_numpy(places[places < coins].astype(np.int64)))
        last, draws = float(places[-1]), draws + 1
    return torch.cat(found)


def subset(size: int, of: int, integers: Draws) -> Tensor:
    """`size` of the numbers below `of`, all subsets equally likely, sorted."""
    if 2 * size <= of:
        return torch.from_numpy(_different(size, integers))
    stays = torch.ones(of, dtype=torch.bool)
    stays[torch.from_numpy(_different(of - size, integers))] = False
    return stays.nonzero().flatten()


def _different(size: int, integers: Draws) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first `size` different ones of a sequence of uniform draws, which treats all numbers alike; sorted."""
    drawn = members = np.empty(0, dtype=np.int64)
    draws = 0
    while len(members) < size:
        drawn, draws = np.concatenate([drawn, integers(size, draws).numpy()]), draws + 1
        values, first_seen = np.unique(drawn, return_index=True)
        members = values[np.argsort(first_seen)[:size]]
    return np.sort(members)


def subsets(rows: int, size: int, of: int, integers: Draws) -> Tensor:
    """As `subset`, `rows` times independently: [rows, size], every row sorted."""
    few = min(size, of - size)
    found = np.zeros((rows, of), dtype=bool)
    open_rows, draws = np.arange(rows), 0
    while few and len(open_rows):
        wide = 2 * few + 8  # seldom too few; a row that has too few is drawn again, which treats all numbers alike
        drawn = integers(len(open_rows) * wide, draws).numpy().reshape(len(open_rows), wide)
        order = np.argsort(drawn, axis=1, kind="stable")
        ranked = np.take_along_axis(drawn, order, 1)
        first = np.ones_like(ranked, dtype=bool)
        first[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
        fresh = np.empty_like(first)
        np.put_along_axis(fresh, order, first, 1)  # whether a draw is the first of its value in its row
        kept = fresh & (fresh.cumsum(1) <= few)
        done = kept.sum(1) == few
        row, column = kept[done].nonzero()
        found[open_rows[done][row], drawn[done][row, column]] = True
        open_rows, draws = open_rows[~done], draws + 1
    chosen = found if few == size else ~found
    return torch.from_numpy(chosen.nonzero()[1].reshape(rows, size))
