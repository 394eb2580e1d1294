"""Rounding to levels: within its range, right in the mean, and back again."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import binom, chi2

from cloister.core import Context, Sensitivity
from cloister.errors import CloisterError
from cloister.privacy.binomial import loss, moves, profile
from cloister.privacy.events import BinomialSum
from cloister.random.streams import Streams, fold
from cloister.transforms import chain, clip_l2, quantize_to_levels
from cloister.transforms.hadamard import padded


def here_of(d: int, key: int = 0, transform=None, round: int = 1, dtype=torch.float64):
    """What a transform may look at, of a model with d parameters."""
    objective = SimpleNamespace(layout=layout(d))
    context = Context(objective, None, 1.0, torch.zeros(d, dtype=dtype), torch.tensor(key), d)
    if transform is None or transform.broadcast is None:
        return context
    return replace(context, broadcast=transform.broadcast(Streams(0), round, context, {}))


def layout(d: int):
    return SimpleNamespace(size=d)


any_update = arrays(np.float64, array_shapes(max_dims=1, max_side=40), elements=st.floats(-1e300, 1e300))


@settings(max_examples=150, deadline=None)
@given(
    update=any_update,
    levels=st.integers(2, 601),
    spread=st.floats(1e-6, 1e6),
    rotate=st.booleans(),
    clip_norm=st.floats(1e-3, 1e3),
    key=st.integers(-(2**62), 2**62),
)
def test_whatever_comes_in_few_whole_numbers_of_bounded_norm_go_out(update, levels, spread, rotate, clip_norm, key):
    transform = chain(clip_l2(clip_norm), quantize_to_levels(spread, levels, rotate))
    d = len(update)
    message = transform.encode(torch.from_numpy(update), here_of(d, key, transform))
    assert message.dtype == torch.int64
    assert message.shape == (padded(d) if rotate else d,)
    assert message.abs().max() <= levels // 2
    sensitivity = transform.sensitivity(Sensitivity(length=d), layout(d)).l2
    assert math.sqrt(sum(int(x) ** 2 for x in message)) <= sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("levels", [7, 8, 2])
@pytest.mark.parametrize("rotate", [False, True])
def test_rounding_is_right_in_the_mean_and_a_wrong_scale_would_be_noticed(rotate, levels):
    d, spread, tries = 6, 0.8, 400_000 if levels == 2 else 20_000
    transform = quantize_to_levels(spread, levels, rotate)
    update = torch.tensor([0.5, -0.31, 0.0, 0.07, -0.79, 0.26], dtype=torch.float64)
    context, keys = here_of(d, transform=transform), fold(torch.tensor(1), torch.arange(tries))

    def one(key):
        return transform.encode(update, replace(context, key=key))

    total = torch.func.vmap(one)(keys).sum(0)
    decoded, changed = transform.decode(total, context, {})
    coin = math.sqrt(2) if levels % 2 == 0 else 1.0
    deviation = coin * 2 * spread / (levels - 1) / 2 / math.sqrt(tries)
    assert changed == {}
    assert (decoded / tries - update).abs().max() < 5 * deviation
    assert (decoded / tries - 1.02 * update).abs().max() > 5 * deviation


def test_levels_are_the_two_neighbors_and_numbers_on_the_grid_stay():
    transform = quantize_to_levels(1.0, 5)  # -1, -1/2, 0, 1/2, 1
    on = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0])
    assert transform.encode(on, here_of(5)).tolist() == [-2, -1, 0, 1, 2]
    between = torch.tensor([0.3, -0.3, 0.9, 7.0, -7.0])
    seen = torch.stack([transform.encode(between, here_of(5, key)) for key in range(200)])
    assert [sorted(set(column.tolist())) for column in seen.T] == [[0, 1], [-1, 0], [1, 2], [2], [-2]]


def test_points_of_an_even_number_of_levels_are_made_whole_by_one_coin():
    transform = quantize_to_levels(1.0, 4)  # -1, -1/3, 1/3, 1: which are -3/2, -1/2, 1/2 and 3/2
    on = torch.tensor([-1.0, -1 / 3, 1 / 3, 1.0, 0.0, 9.0], dtype=torch.float64)
    seen = torch.stack([transform.encode(on, here_of(6, key)) for key in range(300)])
    # A third has no exact number: with a chance of 1e-16 it is rounded to a point one further.
    assert [sorted(set(c.tolist())) for c in seen.T] == [[-2, -1], [-1, 0], [0, 1], [1, 2], [-1, 0, 1], [1, 2]]


def message_law(x: float, levels: int, trials: int) -> dict[int, float]:
    """cpSGD's own words, in exact fractions: x in units of the grid, on points -(k-1)/2 ... (k-1)/2, and coins."""
    half = Fraction(levels - 1, 2)
    x = max(-half, min(half, Fraction(x)))
    below = math.floor(x + half)  # the number of the point below
    chance = x + half - below
    law: dict[int, Fraction] = {}
    tosses = trials + (levels % 2 == 0)  # an even number of levels takes an odd number of coins
    for point, p in ((below, 1 - chance), (below + 1, chance)):
        for heads in range(tosses + 1):
            value = point - half + heads - Fraction(tosses, 2)
            assert value.denominator == 1
            law[int(value)] = law.get(int(value), Fraction(0)) + p * Fraction(math.comb(tosses, heads), 2**tosses)
    return {value: float(p) for value, p in law.items() if p}


@pytest.mark.parametrize(("levels", "x"), [(4, 0.3), (4, -1.25), (16, 5.0), (2, 0.0), (5, 0.3)])
def test_a_noisy_number_has_the_law_of_cpsgd(levels, x):
    """Chi-square at a chance of 1e-9 of failing; another offset, or a coin less, is noticed."""
    trials, tries = 6, 40_000
    spread = 0.7
    transform = quantize_to_levels(spread, levels)
    update = torch.tensor([x * 2 * spread / (levels - 1)], dtype=torch.float64)
    context = here_of(1)
    rounded = torch.func.vmap(lambda key: transform.encode(update, replace(context, key=key)))(
        fold(torch.tensor(3), torch.arange(tries))
    )[:, 0]
    random = np.random.default_rng(5)
    found = rounded.numpy() + random.binomial(trials, 0.5, tries) - trials // 2

    def unlike(law: dict[int, float]) -> float:
        expected = {value: p * tries for value, p in law.items() if p * tries >= 5}
        outside = tries - sum(np.count_nonzero(found == value) for value in expected)
        left = max(tries - sum(expected.values()), 1e-9)
        seen = sum((np.count_nonzero(found == value) - n) ** 2 / n for value, n in expected.items())
        return chi2.sf(seen + (outside - left) ** 2 / max(left, 1.0), len(expected))

    assert unlike(message_law(x, levels, trials)) > 1e-9
    assert unlike(message_law(x, levels, trials - 2)) < 1e-9
    assert unlike({value + 1: p for value, p in message_law(x, levels, trials).items()}) < 1e-9


@pytest.mark.parametrize(("levels", "trials"), [(2, 300), (4, 1200), (8, 4000), (16, 16000)])
def test_even_levels_cost_no_more_than_is_priced(levels, trials):
    """The exact delta of one number, over all pairs of a fine grid of inputs, against the priced profile. The coin that
    makes points whole counts for nothing in the price, so it is left out of the law (as if everybody saw it)."""
    event = BinomialSum(levels, trials, 1.0, 1.0, 1, 1.0, 1e-9)
    eps = np.linspace(0.0, 6.0, 25)
    priced = profile(eps, loss(event))
    heads = np.arange(trials + 1)
    coins = np.exp(binom.logpmf(heads, trials, 0.5))

    def law(point: float) -> np.ndarray:
        below = math.floor(point)
        chance = point - below
        found = np.zeros(trials + levels + 2)
        found[below : below + trials + 1] += (1 - chance) * coins
        found[below + 1 : below + trials + 2] += chance * coins
        return found

    laws = [law(point) for point in np.linspace(0, levels - 1, 9)]
    worst = np.zeros_like(eps)
    for first in laws:
        for second in laws:
            exact = np.maximum(first[None] - np.exp(eps)[:, None] * second[None], 0).sum(1)
            worst = np.maximum(worst, exact)
    assert (worst <= priced + 1e-12).all()
    too_cheap = profile(eps, loss(replace(event, trials=trials * 9)))
    assert (worst > too_cheap).any(), "a third of the distance would be noticed"


def test_sums_need_no_offset_however_many_came():
    transform = quantize_to_levels(1.0, 9)
    update = torch.tensor([0.25, -0.75, 0.0])  # on the grid, so that nothing is random
    for members in (0, 1, 5):
        total = torch.zeros(3, dtype=torch.int64) + members * transform.encode(update, here_of(3))
        decoded, _ = transform.decode(total, here_of(3), {})
        assert torch.allclose(decoded, members * update.double())


def test_nothing_to_say_is_zero_itself_rotated_or_not():
    for rotate in (False, True):
        transform = quantize_to_levels(0.3, 17, rotate)
        assert not transform.encode(torch.zeros(5), here_of(5, transform=transform, dtype=torch.float32)).any()


def test_rotating_spreads_and_comes_back():
    d = 200
    transform = quantize_to_levels(0.5, 2**14 + 1, rotate=True)
    update = torch.zeros(d, dtype=torch.float64)
    update[[3, 50]] = 1.0  # beyond the range, were they not spread
    context = here_of(d, transform=transform)
    message = transform.encode(update, context)
    assert message.abs().max() < 2**13
    assert torch.allclose(transform.decode(message, context, {})[0], update, atol=1e-3)
    others = [transform.encode(update, here_of(d, transform=transform, round=r)) for r in range(2, 8)]
    assert not all(torch.equal(other, message) for other in others), "another round, another rotation"


@pytest.mark.parametrize("levels", [17, 16])
@pytest.mark.parametrize("rotate", [False, True])
def test_neighbors_are_as_far_apart_as_is_priced(rotate, levels):
    """The code's own roundings of two opposite vectors, over many keys; what is priced holds but for a small chance."""
    d, clip_norm, spread, step_delta = 256, 1.0, 0.2, 0.05
    transform = chain(clip_l2(clip_norm), quantize_to_levels(spread, levels, rotate))
    event = BinomialSum(levels, 100, clip_norm, spread, d, 1.0, step_delta)
    update = 10 * torch.randn(d, generator=torch.Generator().manual_seed(1))
    context = here_of(d, transform=transform, dtype=torch.float32)

    def apart(key):
        now = replace(context, key=key)
        return (transform.encode(update, now) - transform.encode(-update, now)).abs()

    found = torch.func.vmap(apart)(fold(torch.tensor(7), torch.arange(2000))).double()
    known = moves(event)
    outside = (found.norm(dim=1) > known.l2) | (found.sum(1) > known.l1) | (found.max(1).values > known.most)
    assert outside.double().mean() < step_delta
    assert found.norm(dim=1).max() > 0.85 * known.l2, "a sixth less would be exceeded"


def test_the_bits_hold_a_message_and_a_sum_of_them():
    assert quantize_to_levels(1.0, 17, trials=7114).bits == math.ceil(math.log2(17 + 7114))
    assert quantize_to_levels(1.0, 3, trials=6).bits == 4  # nine values
    assert quantize_to_levels(1.0, 3, trials=4, messages=1).bits == 3  # seven
    assert quantize_to_levels(1.0, 16, trials=0).bits == 5  # a coin more than four bits hold
    assert quantize_to_levels(1.0, 16, trials=110).bits == 7  # 16 levels and 111 coins: 127 values
    assert quantize_to_levels(1.0, 17, trials=7114, messages=100).bits == math.ceil(math.log2(100 * (16 + 7114) + 1))


def test_a_larger_clip_than_was_priced_has_a_larger_bound():
    bounds = [
        chain(clip_l2(c), quantize_to_levels(0.1, 33)).sensitivity(Sensitivity(length=100), layout(100)).l2
        for c in (0.5, 0.501, 1.0, 2.0)
    ]
    assert bounds[0] < bounds[1] < bounds[2] == bounds[3], "beyond the range nothing is left to grow"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"levels": 1}, "levels"),
        ({"range": 0.0}, "range"),
        ({"trials": -1}, "trials"),
        ({"messages": 0}, "messages"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, words):
    with pytest.raises(CloisterError, match=words):
        quantize_to_levels(**{"range": 1.0, "levels": 17, **wrong})
