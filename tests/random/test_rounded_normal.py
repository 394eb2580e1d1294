"""Rounded normal draws, against mpmath: bit for bit, as a law, and where 63 bits do not tell."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch

from bounds import fits_cells, fits_rate
from cloister.errors import CloisterError
from cloister.random import rounded_normal as sampler
from cloister.random.rounded_normal import rounded_normal
from cloister.random.streams import Streams


def more(pair: int, which: int, times: int) -> int:
    """Further bits that anybody can compute again."""
    return int.from_bytes(hashlib.blake2b(f"{pair} {which} {times}".encode(), digest_size=8).digest(), "big") >> 1


def by_mpmath(p: int, q: int, pair: int, sigma: float, bits: int = 63) -> tuple[int, int]:
    """Both draws of a pair from 189 further bits of each number, from the definition, with 160 digits."""
    for times in range(3):
        p, q = p << 63 | more(pair, 0, times), q << 63 | more(pair, 1, times)
    with mpmath.workdps(160):
        radius = mpmath.mpf(sigma) * mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(p) / 2 ** (bits + 189)))
        angle = 2 * mpmath.pi * mpmath.mpf(q) / 2 ** (bits + 189)
        return tuple(int(mpmath.floor(radius * f(angle) + 0.5)) for f in (mpmath.cos, mpmath.sin))


def law(sigma: float, reach: int) -> np.ndarray:
    """P(K = k) for k = -reach .. reach, and of all beyond, which comes last."""
    with mpmath.workdps(50):
        tails = [
            mpmath.erfc((k - mpmath.mpf("0.5")) / (mpmath.sqrt(2) * mpmath.mpf(sigma))) / 2 for k in range(1, reach + 2)
        ]
        half = [float(one - other) for one, other in pairwise(tails)]
        return np.array([*reversed(half), float(1 - 2 * tails[0]), *half, float(2 * tails[-1])])


def fits(draws: torch.Tensor, sigma: float) -> bool:
    """By every cell that 5 draws are expected in, and all others together; rejects the right law once in 1e9."""
    reach = int(sigma * 6) + 2
    whole = draws.long().numpy()
    inside = np.abs(whole) <= reach
    counts = np.append(np.bincount(whole[inside] + reach, minlength=2 * reach + 1), (~inside).sum())
    cells = law(sigma, reach)
    kept = len(draws) * cells > 5
    kept[-1] = False
    return fits_cells(np.append(counts[kept], counts[~kept].sum()), np.append(cells[kept], cells[~kept].sum()))


@pytest.mark.parametrize("count", [1_500, pytest.param(50_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sigma", [0.7, 2.0**24 / 3, 2.0**33])
def test_draws_are_those_of_mpmath_to_the_last(count, sigma):
    bits = torch.from_numpy(np.random.default_rng(1).integers(0, 2**63, (2, count)))
    # where it is hard: next to nothing, next to one, whole, half and quarter turns
    edges = [0, 1, 2, 2**20, 2**62, 2**63 - 1, 2**63 - 2]
    bits[:, : len(edges) ** 2] = torch.tensor([(a, b) for a in edges for b in edges]).T
    found = sampler._drawn(*bits, sigma, more).view(2, -1).T.tolist()
    expected = [by_mpmath(p, q, pair, sigma) for pair, (p, q) in enumerate(bits.T.tolist())]
    assert [tuple(map(int, pair)) for pair in found] == expected


def test_the_bound_on_the_error_holds():
    """Of float64, for every kind of radius; were it a tenth of what it is, it would not."""
    random, sigma, worst = np.random.default_rng(2), 2.0**24, 0.0
    for exponent in (0, 1, 2, 8, 20, 40, 52):
        p = torch.from_numpy(random.integers(2 ** (62 - exponent), 2 ** (63 - exponent), 60))
        q = torch.from_numpy(random.integers(0, 2**63, 60))
        radius = (p.double() * 2.0**-63).log().mul(-2).sqrt()
        x = radius * sigma * (q.double() * (2 * np.pi * 2.0**-63)).cos()
        error = sigma * (2.0**-46 * radius + (2.0**-51 + 4 / p.double()) / radius)
        inside = (radius >= 2.0**-7) & (radius <= 4.5)
        assert bool((error[inside] <= sigma * sampler._SURE).all())
        for place in range(60):
            with mpmath.workdps(60):
                for u in (int(p[place]), int(p[place]) + 1 - 2.0**-9):
                    r = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(u) / 2**63))
                    exact = sigma * r * mpmath.cos(2 * mpmath.pi * mpmath.mpf(int(q[place])) / 2**63)
                    worst = max(worst, float(abs(exact - mpmath.mpf(float(x[place]))) / float(error[place])))
    assert 0.05 < worst < 0.8


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.3])
def test_the_law_is_right_and_one_percent_off_is_noticed(sigma, secure):
    """Fails without cause in 1 of 1e9 runs. n KL of a sigma that is 1 % off is about 2 n / 1e4 = 400 (at 0.3: 150)."""
    draws = rounded_normal(2_000_000, sigma, Streams(3, secure), "noise", 1)
    assert fits(draws, sigma)
    wrong = (0.97, 1.03) if sigma < 1 else (0.99, 1.01)
    assert not any(fits(draws, factor * sigma) for factor in wrong)
    # noise that is rounded down instead of to the nearest, and (where it shows) a cut tail
    real = torch.from_numpy(np.random.default_rng(4).standard_normal(2_000_000))
    assert fits((real * sigma).round(), sigma)
    assert fits((real[real.abs() < 3.5] * sigma).round(), sigma) is (sigma < 1)
    assert not fits((real * sigma).floor(), sigma)


@pytest.mark.parametrize("bits", [1, 3, pytest.param(9, marks=pytest.mark.slow)])
def test_draws_that_their_first_bits_leave_open_are_settled_exactly(bits):
    """With so few bits nearly all are; were further bits not random, the law would be another."""
    random = np.random.default_rng(bits)
    few = torch.from_numpy(random.integers(0, 2**bits, (2, 300)))
    asked = []

    def further(pair: int, which: int, times: int) -> int:
        asked.append(pair)
        return int(random.integers(2**63))

    assert fits(sampler._drawn(*few, 1.5, further, bits), 1.5)
    assert len(asked) > (300 if bits < 9 else 5)
    assert bits > 1 or not fits(sampler._drawn(*few, 1.5, lambda *_: 2**62, bits), 1.5)


def test_further_bits_are_those_of_their_own_number():
    few = torch.from_numpy(np.random.default_rng(6).integers(0, 8, (2, 40)))
    found = sampler._drawn(*few, 1000.0, more, 3).view(2, -1).T.tolist()
    expected = [by_mpmath(p, q, pair, 1000.0, 3) for pair, (p, q) in enumerate(few.T.tolist())]
    assert [tuple(map(int, pair)) for pair in found] == expected


def test_a_wide_margin_changes_nothing(monkeypatch):
    """What float64 decides, intervals decide alike."""
    bits = torch.from_numpy(np.random.default_rng(3).integers(0, 2**63, (2, 400)))
    usual, asked = sampler._drawn(*bits, 2.0**20, more), []

    def none_is_sure(p, q, sigma, found):
        asked.append(len(p))
        return torch.arange(len(p))

    monkeypatch.setattr(sampler, "_computed", none_is_sure)
    assert torch.equal(sampler._drawn(*bits, 2.0**20, more), usual)
    assert asked == [400]


def test_the_tail_has_no_end():
    """63 zeros are followed by others, and a draw may be as far out as its bits say."""
    zeros = torch.zeros(1, dtype=torch.int64)
    far = sampler._drawn(zeros, zeros, 1000.0, lambda pair, which, times: int(which == 0 and times == 3))
    assert far[0] == round(1000 * float(mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(2) ** (-63 * 5)))))
    assert far[0] > 20_000


def test_last_digits_are_even_spread_whatever_the_scale():
    """At 2^24 points a deviation, the law of K mod 32 is uniform (but for 1e-100): what floats would make coarse."""
    draws = rounded_normal(400_000, 2.0**24, Streams(5), "noise", 1).long().numpy()
    counts = np.bincount(draws % 32, minlength=32)
    assert fits_cells(counts, np.full(32, 1 / 32))
    assert fits_rate(int((draws > 0).sum()), len(draws), 0.5)
    coarse = draws.astype(np.float32).astype(np.int64)
    assert not fits_cells(np.bincount(coarse % 32, minlength=32), np.full(32, 1 / 32))


@pytest.mark.parametrize("secure", [False, True])
def test_places_of_a_run_have_draws_of_their_own(secure):
    streams = Streams(1, secure)
    one = rounded_normal(7, 2.0**24, streams, "noise", 1, -1)
    assert torch.equal(one, rounded_normal(7, 2.0**24, streams, "noise", 1, -1)) is not secure
    for place in [("noise", 2, -1), ("noise", 1, 0), ("step noise", 1, -1)]:
        assert not torch.equal(one, rounded_normal(7, 2.0**24, streams, *place))


def test_scales_that_no_float_holds_are_refused():
    for sigma in (0.0, -1.0, 2.0**45, float("nan")):
        with pytest.raises(CloisterError, match="coarsen the grid"):
            rounded_normal(2, sigma, Streams(0), "noise")
