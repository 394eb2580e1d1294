"""The bounds hold where everything can be enumerated, and the tests that rely on them notice what they say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from bounds import FALSE_ALARM, fits_cells, fits_curve, fits_rate, limit, missed, reach


@pytest.mark.parametrize("law", [(0.5, 0.5), (0.9, 0.1), (0.2, 0.3, 0.5), (0.97, 0.02, 0.01), (0.4, 0.3, 0.2, 0.1)])
@pytest.mark.parametrize("alarm", [0.3, 1e-2, 1e-5])
@pytest.mark.parametrize("total", [1, 5, 24])
def test_cells_are_rejected_as_rarely_as_is_said(law, alarm, total):
    """Every outcome of so many draws, with its probability."""
    falsely = 0.0
    for counts in itertools.product(range(total + 1), repeat=len(law) - 1):
        if sum(counts) <= total:
            seen = np.array([*counts, total - sum(counts)])
            falsely += stats.multinomial.pmf(seen, total, law) * (not fits_cells(seen, np.array(law), alarm))
    assert falsely <= alarm


@pytest.mark.parametrize("sampling_rate", [0.5, 0.03])
@pytest.mark.parametrize("tosses", [1, 20, 700])
def test_rates_are_rejected_as_rarely_as_is_said(sampling_rate, tosses):
    wrong = [heads for heads in range(tosses + 1) if not fits_rate(heads, tosses, sampling_rate, 1e-2)]
    assert stats.binom.pmf(wrong, tosses, sampling_rate).sum() <= 1e-2
    assert tosses == 1 or wrong


def test_curves_are_rejected_as_rarely_as_is_said_and_at_the_distance_that_is_said():
    random = np.random.default_rng(0)
    assert sum(not fits_curve(random.random(50), np.asarray, 0.2) for _ in range(2000)) < 2000 * 0.2
    even = (np.arange(10_000) + 0.5) / 10_000
    assert fits_curve(even + 0.99 * reach(10_000), np.asarray)
    assert not fits_curve(even + 1.01 * reach(10_000), np.asarray)


def test_limits_are_those_of_the_bound_and_grow_with_the_cells():
    for cells in (2, 3, 16, 40):
        t = limit(cells)
        assert math.exp(-t) * (math.e * t / (cells - 1)) ** (cells - 1) == pytest.approx(FALSE_ALARM)
    assert limit(2) < limit(3) < limit(16) < limit(40)


# ---- what the tests that use them would notice ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tosses", "right", "wrong"),
    [
        (2000 * 100, 0.3, 0.3 * 1.05),  # members of Poisson cohorts
        (4 * 12_000, 0.12, 0.14),  # of four clients
        (4 * 12_000, 0.5, 0.53),
        (4 * 12_000, 0.85, 0.88),
        (20_000, 0.55, 0.5),  # bits
    ],
)
def test_wrong_rates_are_noticed_surely(tosses, right, wrong):
    assert missed(tosses, right, wrong) < 1e-9


def test_normal_draws_of_another_scale_and_bent_uniform_ones_are_noticed_surely():
    x = np.linspace(-4, 4, 100_001)
    apart = np.abs(special.ndtr(x) - special.ndtr(x / 1.05)).max()
    assert apart == pytest.approx(0.0118, abs=1e-4)
    flat = np.linspace(0, 1, 100_001)
    for distance in (apart, np.abs(flat - flat ** (1 / 1.05)).max()):
        assert 2 * math.exp(-2 * 400_001 * (distance - reach(400_001)) ** 2) < 1e-14


def unnoticed(draws: int, right: np.ndarray, wrong: np.ndarray) -> float:
    """A bound on the probability that `fits_cells` accepts the wrong law.

    For every function f of a cell, n KL(shares, wrong) >= sum of f over the draws - n log E_wrong[exp f] (Donsker &
    Varadhan). With f = a log(right / wrong), the sum is one of independent terms, and Chernoff's bound does the rest.
    """
    cells = right > 0
    p, q, t = right[cells], np.maximum(wrong[cells], 1e-300), limit(int((wrong > 0).sum()))
    score = np.log(p / q)
    best = 0.0
    for a, s in itertools.product(np.linspace(0.2, 1.0, 17), np.geomspace(1e-3, 3, 60)):
        level = t + draws * math.log(float((q * np.exp(a * score)).sum()))  # accepted only if the sum is below
        best = min(best, s * level + draws * math.log(float((p * np.exp(-s * a * score)).sum())))
    return math.exp(best)


def discrete_gaussian(sigma: float) -> np.ndarray:
    x = np.arange(-30, 31)
    law = np.exp(-(x**2) / (2 * sigma**2))
    return law / law.sum()


@pytest.mark.parametrize("sigma", [0.5, 1.0])
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_another_sigma_is_noticed_surely(sigma, factor):
    """Larger ones as surely: from a sigma of 1 on, n KL is that of continuous Gaussians, at least 460."""
    assert unnoticed(200_000, discrete_gaussian(sigma), discrete_gaussian(factor * sigma)) < 1e-9


@pytest.mark.parametrize(("trials", "draws"), [(1, 1_000_000), (2, 1_000_000), (20, 200_000), (63, 200_000)])
@pytest.mark.parametrize("chance", [0.49, 0.51])
def test_other_coins_are_noticed_surely(trials, draws, chance):
    """More trials more surely still: n KL grows with them."""
    heads = np.arange(trials + 1)
    right, wrong = (stats.binom.pmf(heads, trials, c) for c in (0.5, chance))
    assert unnoticed(draws, right, wrong) < 1e-9


def test_a_client_that_is_drawn_more_often_is_noticed_surely():
    """Two of five, one of them with weight 1.3: 0.473 of the cohorts hold it, not 0.4."""
    first, other = 1.3 / 5.3, 1 / 5.3
    pairs = dict.fromkeys(itertools.combinations(range(5), 2), 0.0)
    for pair in pairs:
        a, b = (first if client == 0 else other for client in pair)
        pairs[pair] = a * b / (1 - a) + b * a / (1 - b)
    assert sum(pairs.values()) == pytest.approx(1)
    assert unnoticed(12_000, np.array([*pairs.values()]), np.full(10, 0.1)) < 1e-9
