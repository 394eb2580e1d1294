"""Rounded normal draws, against mpmath: to the last, as a law, and where the first bits do not tell."""

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

TOP, END, LAYERS = 407.125, 8, 1023


def words_of(*place: int, count: int = 1) -> np.ndarray:
    """Further words of 64 bits that anybody can compute again."""
    digest = hashlib.shake_128(str(place).encode()).digest(8 * count)
    return np.frombuffer(digest, dtype=np.int64)


def more(number: int, *place: int) -> np.ndarray:
    return words_of(*place, count=number)


def drawn(words: np.ndarray, sigma: float, more=more) -> np.ndarray:
    """What becomes of words that somebody has chosen."""
    found = np.empty(len(words))
    block = sampler._BLOCK
    sampler._draw(found, sigma, lambda number, size: words[number * block : number * block + size], more)
    return found


def ziggurat() -> list[tuple[mpmath.mpf, int]]:
    """Every layer from the definition: d_0 is 1/16, and d_i the largest multiple of 2^-30 whose layer is a little wider
    than the curve at y_i; that is (y_i, d_i 2^30)."""
    found, y = [], mpmath.mpf(0)
    for number in range(LAYERS):
        reached = mpmath.sqrt(2 * mpmath.log(TOP / y)) if number else 0
        height = 2**26 if number == 0 else int(mpmath.floor(2**30 / (2 * reached * (1 + mpmath.mpf(2) ** -24))))
        found.append((y, height))
        y += mpmath.mpf(height) / 2**30
    return found


with mpmath.workdps(60):
    ZIGGURAT = ziggurat()


def by_mpmath(word: int, v: int, sigma: float, s_more: int = 0, v_more: int = 0, bits: int = 0) -> int | None:
    """One try, with 120 digits and the further bits of both numbers that are given; None where it comes to nothing."""
    number, s = word % 1024, word >> 10
    with mpmath.workdps(120):
        v = (mpmath.mpf(v << bits | v_more) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** (64 + bits)
        s = s << bits | s_more
        if number == LAYERS:
            u = (mpmath.mpf(s % 2 ** (53 + bits)) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** (53 + bits)
            x = END - mpmath.log(u) / END
            if v >= TOP * mpmath.exp(-(END**2) / 2) / (END / 2) * mpmath.exp(-((x - END) ** 2) / 2):
                return None
            x = x if s >= 0 else -x
        else:
            y, height = ZIGGURAT[number]
            height = mpmath.mpf(height) / 2**30
            x = (mpmath.mpf(s) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** (53 + bits) / (2 * height)
            if y + v * height >= TOP * mpmath.exp(-(x**2) / 2):
                return None
        return int(mpmath.floor(sigma * x + mpmath.mpf("0.5")))


def slowly(words: np.ndarray, sigma: float) -> list[int]:
    """All draws, one at a time and turn by turn, each number with 128 further bits."""
    found: list[int | None] = [None] * len(words)
    where, now, turn = list(range(len(words))), words.tolist(), 0
    while where:
        # what was sure at once is not asked for its height, so that the places of the others are those left open
        left = [k for k in range(len(where)) if turn or not _sure(now[k], sigma)]
        for k in set(range(len(where))) - set(left):
            found[where[k]] = by_mpmath(now[k], 0, sigma)
        heights = words_of(turn, count=2 * len(left)).tolist() if left else []
        again = []
        for place, k in enumerate(left):
            further = [
                sum((int(words_of(turn, where[k], uniform, times)[0]) + 2**63) << 64 * (1 - times) for times in (0, 1))
                for uniform in (0, 1)
            ]
            found[where[k]] = by_mpmath(now[k], heights[2 * place] + 2**63, sigma, *further, bits=128)
            if found[where[k]] is None:
                again.append((where[k], heights[2 * place + 1]))
        where, now, turn = [k for k, _ in again], [word for _, word in again], turn + 1
    return [0 if one is None else one for one in found]


def _sure(word: int, sigma: float) -> bool:
    found = np.empty(1)
    return not len(sampler._at_once(np.array([word]), sigma, sampler._layers(), found, np.empty(1)))


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


def test_every_layer_is_as_the_proof_wants_it():
    """Wide enough for the curve, as high as an area of 1 takes, one on the other up to the top, and below where V is
    not asked for. With 60 digits; nothing is so close to its neighbor that another library could have chosen that."""
    layers = sampler._layers()
    assert sampler._TOP == TOP
    assert sampler._END == END
    assert {len(column) for column in layers} == {1024}
    with mpmath.workdps(60):
        for number, (y, height) in enumerate(ZIGGURAT):
            height = mpmath.mpf(height) / 2**30
            width, top = 1 / (2 * height), y + height
            assert (layers.floors[number], layers.heights[number]) == (float(y), float(height))
            assert y == mpmath.mpf(float(y)), "floats are exact"
            assert height == mpmath.mpf(float(height)), "floats are exact"
            assert abs(layers.widths[number] * 2.0**53 / width - 1) < 2.0**-52
            assert number == 0 or TOP * mpmath.exp(-(width**2) / 2) < y, "the curve is inside"
            assert width == END if number == 0 else width < END
            if number < LAYERS - 1:
                edge = mpmath.mpf(layers.below[number])
                assert TOP * mpmath.exp(-(edge**2) / 2) > top, "the layer is below the curve"
                assert 2.0**-27 < mpmath.sqrt(2 * mpmath.log(TOP / top)) - edge < 2.0**-21, "with a margin"
            if number:
                best = 2**30 / (2 * mpmath.sqrt(2 * mpmath.log(TOP / y)) * (1 + mpmath.mpf(2) ** -24))
                assert 1e-6 < best - mpmath.floor(best) < 1 - 1e-6, "rounded alike everywhere"
        assert top >= TOP
        assert layers.floors[-1] == float(top)
        assert layers.below[-2] == 0
        assert layers.widths[-1] == layers.below[-1] == layers.heights[-1] == 0
        assert TOP * mpmath.exp(-(END**2) / 2) / (END / 2) < sampler._TRIED


def hard_words(random: np.random.Generator, each: int) -> np.ndarray:
    """At the ends of layers, next to their middle, where V begins to matter, and in tails; of every layer some."""
    layers, numbers = sampler._layers(), np.repeat(np.arange(1024), each)
    most, some = 2**53, random.integers(0, 8, len(numbers))
    with np.errstate(invalid="ignore", divide="ignore"):
        border = np.nan_to_num(layers.below[numbers] / layers.widths[numbers], nan=0.0).astype(np.int64)
    sides = np.select(
        [some < 2, some < 3, some < 4, some < 5, some < 7],
        [border + random.integers(-2, 3, len(numbers)), most - 1, 0, -most, random.integers(0, most, len(numbers))],
        border - random.integers(0, 2**20, len(numbers)),
    )
    sides = np.clip(np.where(random.integers(0, 2, len(numbers)) == 1, sides, -sides), -most, most - 1)
    return sides << 10 | numbers


@pytest.mark.parametrize("each", [1, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sigma", [0.7, 2.0**24 / 3, 2.0**33, 2.0**44])
def test_draws_are_those_of_mpmath_to_the_last(each, sigma):
    """Where it is hard, and where it is not: all turns of all of them."""
    random = np.random.default_rng(each)
    few = np.concatenate([hard_words(random, each), random.integers(-(2**63), 2**63, 500 * each)])
    few = few[: 200 * each] if sigma == 2.0**44 else few  # there more than a quarter is left open
    found = drawn(few, sigma)
    assert found.astype(np.int64).tolist() == slowly(few, sigma)


@pytest.mark.parametrize("sigma", [3.0, 2.0**26 * 1.3])
def test_vectors_are_those_of_whole_numbers(sigma):
    """Of 200,000 words, all that the first bits decide, in whole numbers alone: floor((2 s' w + 1) / 2) by Python."""
    words = np.random.default_rng(7).integers(-(2**63), 2**63, 200_000)
    found = np.empty(len(words))
    there = sampler._at_once(words, sigma, sampler._layers(), found, np.empty(len(words)))
    assert 0.003 < len(there) / len(words) < 0.008, "few are left open"
    top, bottom = sigma.as_integer_ratio()
    heights = [height for _, height in ZIGGURAT]
    sure = np.setdiff1d(np.arange(len(words)), there)
    for word, draw in zip(words[sure].tolist(), found[sure].tolist(), strict=True):
        number, s = word % 1024, word >> 10
        # sigma x = (s + S') 2^-53 2^30 / (2 heights) sigma, for both ends of S'
        below, above = (
            (2 * top * end + (denominator := bottom * heights[number] << 24)) // (2 * denominator) for end in (s, s + 1)
        )
        assert below == above == draw


def test_all_points_of_layers_that_need_no_height_are_below_the_curve():
    """Of 100,000 words: what is sure at once would be, whatever V is."""
    words = np.random.default_rng(8).integers(-(2**63), 2**63, 100_000)
    there = sampler._at_once(words, 1.0, sampler._layers(), np.empty(len(words)), np.empty(len(words)))
    sure = np.setdiff1d(np.arange(len(words)), there)
    numbers, sides = words[sure] & 1023, words[sure] >> 10
    assert (numbers < LAYERS).all()
    tops = np.array([float(y) + height / 2**30 for y, height in ZIGGURAT])[numbers]
    widths = np.array([2**29 / height for _, height in ZIGGURAT])[numbers]
    with np.errstate(invalid="ignore"):
        assert (TOP * np.exp(-0.5 * (sides * 2.0**-53 * widths) ** 2) > tops).all()


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


@pytest.mark.slow
def test_the_law_is_right_in_every_layer():
    """Cells of 1/80 of a deviation: 2e7 draws, and their squares. Fails without cause in 1 of 1e9 runs. Were no
    point above the curve refused, squares would be off by more than five times what is allowed."""
    draws = rounded_normal(20_000_000, 80.0, Streams(11), "noise", 1)
    assert fits(draws, 80.0)
    squares = float(draws.square().mean()) / (80.0**2 + 1 / 12) - 1
    allowed = 6.2 * (2 / len(draws)) ** 0.5
    assert abs(squares) < allowed
    words, layers = Streams(12).protective_words(2_000_000, "noise", 1).numpy(), sampler._layers()
    x = (layers.widths[words & 1023] * (words >> 10))[words & 1023 < LAYERS]
    assert float((x**2).mean()) - 1 > 5 * allowed, "every point taken"


def undecided(number: int, sigma: float) -> tuple[int, int]:
    """s and v of which 54 and 64 bits do not tell: the height is next to the curve, sigma x next to a half."""
    with mpmath.workdps(80):
        y, height = ZIGGURAT[number]
        height = mpmath.mpf(height) / 2**30
        x = (mpmath.mpf(sampler._layers().below[number]) + 1 / (2 * height)) / 2  # between the two borders
        x = (mpmath.floor(sigma * x) + mpmath.mpf("0.5")) / sigma
        v = (TOP * mpmath.exp(-(x**2) / 2) - y) / height
        assert 0 < v < 1
        return int(mpmath.floor(x * 2 * height * 2**53)), int(mpmath.floor(v * 2**64))


def test_what_first_bits_leave_open_is_settled_by_further_ones():
    """Next to the curve and next to a half at once: accepted or not by further bits, each as it should be."""
    sigma, ends = 2.0**24 / 3, []
    for number in range(1, LAYERS - 1, 41):
        s, v = undecided(number, sigma)
        for turn in range(12):
            asked = []

            def further(uniform: int, times: int, place: tuple = (number, turn), asked: list = asked) -> int:
                asked.append((uniform, times))
                return int(words_of(*place, uniform, times)[0]) + 2**63

            found = sampler._settled(number, s, v, sigma, further)
            times = len(asked) // 2
            assert times >= 1
            bits = [sum(further(uniform, k) << 64 * (times - k - 1) for k in range(times)) for uniform in (0, 1)]
            assert found == by_mpmath(s << 10 | number, v, sigma, *bits, bits=64 * times)
            ends.append(found)
    assert 0.05 < ends.count(None) / len(ends) < 0.95
    # and in between nothing is asked
    assert sampler._settled(5, 1, 1, 0.01, lambda *_: pytest.fail("all is known")) == 0


def test_heights_have_further_bits_of_their_own():
    """At x = 0 the curve is level, so that the bits of V alone decide; those of S are all ones, or all zeros."""
    with mpmath.workdps(60):
        y, height = ZIGGURAT[-1]
        v = (TOP - y) / (mpmath.mpf(height) / 2**30) * mpmath.mpf(2) ** 64
        v, rest = int(mpmath.floor(v)), v - mpmath.floor(v)
        limit = int(rest * 2**64)
    assert 2**50 < limit < 2**64 - 2**50
    for place in (0, 2**64 - 1):
        for bits, expected in ((limit - 2**40, 0), (limit + 2**40, None)):
            found = sampler._settled(LAYERS - 1, 0, v, 1.0, lambda of, times, given=(place, bits): given[of])
            assert found == expected


def test_what_is_sure_needs_no_intervals_and_what_intervals_decide_is_the_same(monkeypatch):
    words = np.random.default_rng(3).integers(-(2**63), 2**63, 400)
    usual, settled = drawn(words, 2.0**20), []
    real = sampler._settled

    def counted(*given):
        settled.append(given)
        return real(*given)

    monkeypatch.setattr(sampler, "_settled", counted)
    assert (drawn(words, 2.0**20) == usual).all()
    assert not settled
    monkeypatch.setattr(sampler, "_MARGIN", 1e9)
    assert (drawn(words, 2.0**20) == usual).all()
    assert settled, "with a wide margin all that is left open is settled by intervals"


def in_tail(s: int, v: int, further=lambda *_: pytest.fail("all is known")) -> int | None:
    return sampler._settled(LAYERS, s, v, 1000.0, further)


def test_the_tail_has_no_end_and_the_law_it_should():
    """What begins with zeros is followed by others, and a draw may be as far out as its bits say."""
    assert in_tail(2**52, 2**63) is None, "most tries come to nothing"
    near = in_tail(2**53 - 1, 2**15)
    assert near == 8000, "next to 8"
    assert in_tail(-1, 2**15) == -8000, "either sign"
    far = in_tail(0, 0, lambda uniform, times: int(uniform == 0 and times == 2))
    with mpmath.workdps(50):
        u = (mpmath.mpf(1) + mpmath.mpf("0.5")) / mpmath.mpf(2) ** (53 + 3 * 64)
        assert abs(far - float(1000 * (END - mpmath.log(u) / END))) < 60
    assert far > 20_000
    # the limit for V, as the formula has it
    with mpmath.workdps(50):
        for s in (2**40, 2**50, 2**52 + 12345, 2**53 - 1):
            beyond = -mpmath.log((mpmath.mpf(s) + mpmath.mpf("0.5")) / 2**53) / END
            limit = TOP * mpmath.exp(-(END**2) / 2) / (END / 2) * mpmath.exp(-(beyond**2) / 2) * mpmath.mpf(2) ** 64
            assert in_tail(s, int(limit * mpmath.mpf("0.4"))) is not None
            assert in_tail(s, int(limit * mpmath.mpf("2.5"))) is None
    found = drawn(np.array([(2**53 - 1) << 10 | LAYERS]), 1000.0, lambda number, *place: words_low(number, place))
    assert found.tolist() == [8000]


def words_low(number: int, place: tuple[int, ...]) -> np.ndarray:
    """Heights next to zero."""
    return np.full(number, -(2**63) + 2**15)


def test_what_the_tail_gives_is_the_rest_of_the_normal_law():
    """Its mean acceptance times its number's probability is P(|Z| > 8), to 40 digits."""
    with mpmath.workdps(40):
        accepted = mpmath.quad(
            lambda u: TOP * mpmath.exp(-(END**2) / 2) / (END / 2) * mpmath.exp(-((mpmath.log(u) / END) ** 2) / 2),
            [mpmath.mpf(10) ** -k for k in (60, 40, 20, 10, 5, 2, 1, 0)],
        )
        whole = TOP * mpmath.sqrt(2 * mpmath.pi)
        assert abs(accepted / whole / mpmath.erfc(END / mpmath.sqrt(2)) - 1) < 1e-12


def test_last_digits_are_even_spread_whatever_the_scale():
    """At 2^24 points a deviation, the law of K mod 32 is uniform (but for 1e-100): what floats would make coarse."""
    draws = rounded_normal(400_000, 2.0**24, Streams(5), "noise", 1).long().numpy()
    counts = np.bincount(draws % 32, minlength=32)
    assert fits_cells(counts, np.full(32, 1 / 32))
    assert fits_rate(int((draws > 0).sum()), len(draws), 0.5)
    coarse = draws.astype(np.float32).astype(np.int64)
    assert not fits_cells(np.bincount(coarse % 32, minlength=32), np.full(32, 1 / 32))


def test_how_many_are_drawn_at_once_changes_no_draw_before():
    """A shorter vector is the beginning of a longer one, however many blocks it takes, and wherever it is written."""
    whole = rounded_normal(150_001, 2.0**26, Streams(1), "noise", 1)
    for count in (0, 1, 7, 2**15 - 1, 2**15, 2**15 + 1, 100_000):
        short = rounded_normal(count, 2.0**26, Streams(1), "noise", 1)
        assert torch.equal(short, whole[:count])
        out = torch.full((count,), 5.0, dtype=torch.float64)
        assert rounded_normal(count, 2.0**26, Streams(1), "noise", 1, out=out) is out
        assert torch.equal(out, short)


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
