"""Every exact sampler, cell by cell: all that can be drawn, with exact probabilities, and wrong laws that are noticed.

Cells in which fewer than five draws are expected are one cell, whose probability is exact as well. Accepting is wrong
in 1 of 1e9 runs (`bounds.fits_cells`); how far wrong laws are from the right one, n KL, is well beyond the limit.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations, product

import mpmath
import numpy as np
import pytest
import torch

from bounds import fits_cells
from cloister.random.binomial import fair_coins
from cloister.random.discrete_gaussian import discrete_gaussian
from cloister.random.rounded_normal import rounded_normal
from cloister.random.samplers import bernoulli_indices, subset, subsets
from cloister.random.streams import Streams

CPU = torch.device("cpu")


def fits(draws: list, law: dict) -> bool:
    """Whether draws are of this law, which has all that can come out, or all but what has less than 1e-40."""
    counts = Counter(draws)
    total = len(draws)
    large = [value for value in law if total * law[value] >= 5]
    observed = np.array([*(counts[value] for value in large), total - sum(counts[value] for value in large)])
    inside = math.fsum(law[value] for value in large)
    rest = max(1 - inside, math.fsum(law[value] for value in law if total * law[value] < 5))
    if observed[-1] == 0 and rest < 1e-12:
        observed, rest = observed[:-1], None
    return fits_cells(observed, np.array([*(law[value] for value in large), *([] if rest is None else [rest])]))


def discrete(sigma: float) -> dict[int, float]:
    with mpmath.workdps(40):
        weights = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in range(-60, 61)}
        whole = mpmath.fsum(weights.values())
        return {k: float(weight / whole) for k, weight in weights.items()}


def rounded(sigma: float) -> dict[int, float]:
    with mpmath.workdps(40):
        below = {k: mpmath.erfc(-(k + mpmath.mpf("0.5")) / (mpmath.sqrt(2) * sigma)) / 2 for k in range(-61, 61)}
        return {k: float(below[k] - below[k - 1]) for k in range(-60, 61)}


def coins(trials: int, heads: float = 0.5) -> dict[int, float]:
    return {k: math.comb(trials, k) * heads**k * (1 - heads) ** (trials - k) for k in range(trials + 1)}


def subsets_of(rate: float, of: int) -> dict[tuple[int, ...], float]:
    """Of independent coins, who shows heads."""
    return {
        tuple(i for i in range(of) if shown[i]): math.prod(rate if one else 1 - rate for one in shown)
        for shown in product([False, True], repeat=of)
    }


N = 300_000


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("draw", "law", "wrong"),
    [
        pytest.param(
            lambda s: discrete_gaussian(N, 0.6, s, CPU, "noise", 1),
            discrete(0.6),
            [discrete(0.615), discrete(0.585), rounded(0.6)],
            id="discrete 0.6",
        ),
        pytest.param(
            lambda s: discrete_gaussian(N, 2.3, s, CPU, "noise", 1),
            discrete(2.3),
            [discrete(2.3 * 1.025), discrete(2.3 / 1.025)],
            id="discrete 2.3",
        ),
        pytest.param(
            lambda s: rounded_normal(N, 0.6, s, "noise", 1).long(),
            rounded(0.6),
            [rounded(0.615), rounded(0.585), discrete(0.6)],
            id="rounded 0.6",
        ),
        pytest.param(
            lambda s: rounded_normal(N, 2.3, s, "noise", 1).long(),
            rounded(2.3),
            [rounded(2.3 * 1.025), rounded(2.3 / 1.025), discrete(2.4), {k + 1: p for k, p in rounded(2.3).items()}],
            id="rounded 2.3",
        ),
        pytest.param(lambda s: fair_coins(N, 9, s, CPU, "noise", 1), coins(9), [coins(9, 0.504)], id="coins 9"),
        pytest.param(lambda s: fair_coins(N, 60, s, CPU, "noise", 1), coins(60), [coins(60, 0.502)], id="coins 60"),
        pytest.param(
            lambda s: s.protective_integers(N, 6, "cohort", 1),
            dict.fromkeys(range(6), 1 / 6),
            [{k: (2 if k < 2 else 1) / 8 for k in range(6)}],  # three bits, modulo 6
            id="integers",
        ),
    ],
)
def test_numbers(draw, law, wrong, secure):
    found = draw(Streams(11, secure)).tolist()
    assert fits(found, law)
    assert not any(fits(found, other) for other in wrong)


@pytest.mark.parametrize("secure", [False, True])
def test_sets(secure):
    """Who is drawn: 6 coins at once from one row of 6 * 20,000, subsets by rows, and single subsets."""
    streams, of, rows = Streams(12, secure), 6, 20_000

    def uniform(count, n):
        return streams.protective_uniform(count, "cohort", 1, n)

    heads = bernoulli_indices(0.3, of * rows, uniform).numpy()
    whose = np.split(heads % of, np.searchsorted(heads // of, np.arange(1, rows)))
    found = [tuple(one.tolist()) for one in whose]
    assert fits(found, subsets_of(0.3, of))
    assert not fits(found, subsets_of(0.33, of))
    size = subsets(rows, 2, of, lambda count, n: streams.protective_integers(count, of, "cohort", 2, n))
    pairs = dict.fromkeys(combinations(range(of), 2), 1 / 15)
    found = [tuple(one) for one in size.tolist()]
    assert fits(found, pairs)
    near = {pair: (1.15 if 0 in pair else 0.925) / 15 for pair in pairs}
    assert not fits(found, near)
    single = []
    for number in range(3_000):
        draws = subset(4, of, lambda count, n, at=number: streams.protective_integers(count, of, "cohort", 3, at, n))
        single.append(tuple(draws.tolist()))
    assert fits(single, dict.fromkeys(combinations(range(of), 4), 1 / 15))
    assert not fits(single, {four: (1.4 if 0 in four else 0.2) / 15 for four in combinations(range(of), 4)})
