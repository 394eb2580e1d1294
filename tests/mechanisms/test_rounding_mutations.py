"""Bugs of rounding, planted one at a time: for each, the check that is named beside it must raise the alarm.

With nothing planted every check passes. The checks look at what is released, and at exact laws; none looks at the code.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

import cloister as cl
from bounds import fits_cells
from cloister.client import thresholds
from cloister.core import noise_grid
from cloister.engine import Loop
from cloister.random import rounded_normal as sampler
from cloister.random.streams import Streams
from cloister.round import SERVER, cohort_total
from cloister.round.answer import noise_share
from cloister.round.run_round import _with_server_noise
from conftest import federation, toy_task
from contract.audit import only_noise
from contract.catalogue import METHODS, fed_of

METHOD = cl.methods.dp_fedavg(clip_norm=0.7, lr=5.0, local_steps=2, noise_multiplier=1.3)
# Both packages have functions of these names.
binding, mechanism = (sys.modules[f"cloister.{name}"] for name in ("round.bind", "mechanisms.gaussian"))
Plant = Callable[[pytest.MonkeyPatch], None]


def fed_on_grid(dtype=torch.float64, **more):
    fed, w = federation(METHOD, cl.full(), dtype=dtype, **more)
    return replace(fed, rounded=True), w


def check_bounds() -> None:
    """Every message is within the bound exactly: those of clients, and of vectors that float clipping leaves above."""
    fed, w = fed_on_grid(torch.float32)
    for client in range(fed.population.clients):
        message, _ = cohort_total(fed, Loop(), 1, w, torch.tensor([client]))
        _expect_within(message, 0.7)
    for excess in (*np.linspace(-6e-9, 6e-9, 12), 1e-5, 1.0):
        even = torch.full((1000,), 0.7 / math.sqrt(1000), dtype=torch.float64) * (1 + excess)
        _expect_within(fed.placed(even), 0.7)


def _expect_within(message: torch.Tensor, l2: float) -> None:
    exact = sum(Fraction(value) ** 2 for value in message.double().tolist())
    assert exact <= Fraction(l2) ** 2, "a message is longer than was priced"


def check_grid() -> None:
    """What rounds release are whole multiples of one power of two, the same with and without clients' data."""
    grids = set()
    for silent in (False, True):
        for scale in (1.0, 1e-3):
            fed, w = fed_on_grid()
            people = replace(fed.population, inputs=fed.population.inputs * scale)
            fed = replace(fed, population=people)
            fed = only_noise(fed) if silent else fed
            noisy = released_sum(fed, w)
            grids.add(_finest(noisy))
            assert not torch.remainder(noisy / 2.0**-24, 1).any(), "on the grid that follows from clip and noise"
    assert grids == {2.0**-24}
    small = fed.placed(torch.full((10,), 0.0012345678, dtype=torch.float64))
    assert not torch.remainder(small / 2.0**-24, 1).any(), "a short message has the grid of the others"


def released_sum(fed, w):
    total, _ = cohort_total(fed, Loop(), 1, w, torch.arange(fed.population.clients))
    return _with_server_noise(fed, 1, total, 1, {})[0]


def _finest(values: torch.Tensor) -> float:
    """The largest power of two of which all values are multiples."""
    parts = [Fraction(value) for value in values.tolist()]
    return float(1 / Fraction(max(part.denominator for part in parts)))


def check_law() -> None:
    """The points of the noise have the law of a rounded normal number: in the middle, and in the last bits."""
    law = sampler.rounded_normal(300_000, 1.7, Streams(1), "noise", 1).long().numpy()
    edges = np.array([-math.inf, *(np.arange(-5, 5) + 0.5), math.inf])
    cells = np.diff([0.5 * math.erfc(-edge / (1.7 * math.sqrt(2))) for edge in edges])
    counts = np.histogram(law, bins=edges)[0]
    assert fits_cells(counts, cells), "not a rounded normal law"
    fine = sampler.rounded_normal(200_000, 2.0**24, Streams(2), "noise", 1).long().numpy()
    assert fits_cells(np.bincount(fine % 16, minlength=16), np.full(16, 1 / 16)), "patterns in the last bits"


def check_tail() -> None:
    """Bits of zero are followed by others."""
    far = sampler._settled(1023, 0, 0, 1000.0, lambda uniform, times: int(uniform == 0 and times == 2))
    assert far is not None
    assert far > 20_000, "the tail is cut"


def check_words() -> None:
    """Words next to where layers cross the curve, one by one, against whole points of it: nothing above is a draw."""
    layers, random = sampler._layers(), np.random.default_rng(4)
    numbers = np.repeat(np.arange(1023), 20)
    sides = (layers.below[numbers] / layers.widths[numbers] * random.uniform(0.999, 1.03, len(numbers))).astype(int)
    words, found = sides.clip(0, 2**53 - 1) << 10 | numbers, np.empty(len(numbers))
    left = sampler._at_once(words, 1000.0, layers, found, np.empty(len(numbers)))
    heights = random.integers(-(2**63), 2**63, len(left))
    _, above = sampler._judged(words[left], heights, 1000.0, lambda *_: 2**63)
    floors = np.concatenate([[0.0], np.cumsum(1 / (2 * layers.widths[:-1] * 2.0**53))])  # from the widths alone
    x = layers.widths[numbers] * (words >> 10)
    curve = 407.125 * np.exp(-x * x / 2)
    sure = np.setdiff1d(np.arange(len(words)), left)
    assert (floors[numbers[sure] + 1] < curve[sure] + 1e-9).all(), "what could be above the curve counts as sure"
    y = floors[numbers[left]] + (heights * 2.0**-64 + 0.5) / (2 * layers.widths[numbers[left]] * 2.0**53)
    clear = np.abs(y - curve[left]) > 1e-6
    assert (above == (y > curve[left]))[clear].all(), "what is above the curve is a draw"
    next_to_half = np.array([(2**53 // 16 + 5) << 10 | 0])  # 1000 x is 500 and a little: sigma x next to a half
    half = 0.5 / (layers.widths[0] * (next_to_half >> 10)[0])  # the scale at which it is one half, as floats go
    found = np.empty(1)
    assert len(sampler._at_once(next_to_half, float(half), layers, found, np.empty(1))), "a tie is decided by floats"


def check_noise() -> None:
    """The scale that was priced, and fresh noise in every round."""
    fed, w = fed_on_grid()
    draws = torch.stack([noise_share(fed, fed.blank(w, {}), number, SERVER, 1) for number in range(1, 41)])
    statistic = float(draws.square().sum()) / (fed.event.noise_multiplier * fed.sensitivity.l2) ** 2
    assert 1e-9 < stats.chi2.cdf(statistic, draws.numel()) < 1 - 1e-9, "not the scale that was priced"
    assert (torch.corrcoef(draws) - torch.eye(40)).abs().max() < 0.7, "rounds have noise of their own"


def check_replaced() -> None:
    """Where the price counts on messages that lie close together, noise is wider by what rounding can do."""
    fed, w = fed_of(METHODS["ae_dpfl"](), cl.full())
    fed = replace(fed, rounded=True)
    narrow = replace(fed.sensitivity, replace_l2=fed.sensitivity.l2 * 1e-4)
    like = fed.blank(w, {})
    drawn = [fed.method.mechanism.draw(1.0, Streams(0), like, one, 1, -1, 1) for one in (fed.sensitivity, narrow)]
    assert float(drawn[1].norm()) > float(drawn[0].norm()) * (1 + 1e-4), "noise does not pay for rounding"


def check_steps() -> None:
    """Steps release points of the grid, under noise that pays for rounding their sums."""
    method = cl.methods.dp_fed(clip_norm=0.5, lr=1.0, batch_size=4, local_steps=1, noise_multiplier=1.3)
    fed, w = federation(method, cl.full(), task=toy_task(sizes=(8, 8)))
    fed = replace(fed, rounded=True)
    message, _ = cohort_total(fed, Loop(), 1, torch.zeros_like(w), torch.tensor([0]))
    points = message * fed.method.local.batching.expected(8) / 0.5 / noise_grid.STEP_GRID
    assert (points - points.round()).abs().max() < 1e-3, "a step is off the grid"


def plant_nearest(patch):
    patch.setattr(binding, "on_grid", lambda message, grid, l2: (message.double() / grid).round() * grid)


def plant_no_check_of_the_norm(patch):
    patch.setattr(binding, "on_grid", lambda message, grid, l2: (message.double() / grid).trunc() * grid)


def plant_messages_off_the_grid(patch):
    patch.setattr(binding, "on_grid", lambda message, grid, l2: message.double())


def plant_grid_from_data(patch):
    real = noise_grid.on_grid

    def by_norm(message, grid, l2):
        finer = noise_grid.grid_of(max(float(message.double().norm()), 1e-9), l2)
        return real(message, finer, l2)

    patch.setattr(binding, "on_grid", by_norm)


def plant_rounded_before_scaling(patch):
    real = mechanism.rounded_normal

    def early(count, sigma, streams, *place):
        return real(count, 2.0**10, streams, *place) * (sigma / 2.0**10)

    patch.setattr(mechanism, "rounded_normal", early)


def plant_floats(patch):
    def continuous(count, sigma, streams, *place):
        return streams.protective_normal(torch.empty(count, dtype=torch.float64), *place) * sigma

    patch.setattr(mechanism, "rounded_normal", continuous)


def plant_reused(patch):
    real = mechanism.rounded_normal
    patch.setattr(
        mechanism, "rounded_normal", lambda count, sigma, streams, *place: real(count, sigma, streams, "noise")
    )


def plant_half(patch):
    real = mechanism.rounded_normal
    patch.setattr(mechanism, "rounded_normal", lambda count, sigma, *place: real(count, sigma / 2, *place))


def plant_floor(patch):
    def down(count, sigma, streams, *place):
        return (streams.protective_normal(torch.empty(count, dtype=torch.float64), *place) * sigma).floor()

    patch.setattr(sampler, "rounded_normal", down)


def plant_one_percent(patch):
    real = sampler._draw
    patch.setattr(sampler, "_draw", lambda found, sigma, *rest: real(found, 0.97 * sigma, *rest))


def plant_coarse_uniforms(patch):
    real = sampler._draw

    def coarse(found, sigma, *rest):
        real(found, sigma / 8, *rest)
        found *= 8

    patch.setattr(sampler, "_draw", coarse)


def plant_cut_tail(patch):
    real = sampler._settled
    patch.setattr(sampler, "_settled", lambda number, s, v, sigma, _: real(number, max(s, 1), v, sigma, lambda *_: 0))


def plant_wrong_border(patch):
    layers = sampler._layers()
    patch.setattr(sampler, "_layers", lambda: layers._replace(below=layers.below * 1.001))


def plant_layers_off_by_one(patch):
    layers = sampler._layers()
    patch.setattr(sampler, "_layers", lambda: layers._replace(floors=np.append(layers.floors[1:], 0.0)))


def plant_nothing_refused(patch):
    real = sampler._judged

    def all_below(*given):
        draws, above = real(*given)
        return draws, np.zeros_like(above)

    patch.setattr(sampler, "_judged", all_below)


def plant_ties_by_floats(patch):
    patch.setattr(sampler, "_at_once", _careless(sampler._at_once))


def _careless(real):
    """As if products had no errors: nothing but what is exactly a half is left open."""

    def at_once(words, sigma, layers, found, distance):
        real(words, sigma, layers, found, distance)
        x = layers.widths[words & 1023] * (words >> 10)
        ties = np.abs(x * sigma - np.rint(x * sigma)) > 0.5
        return np.flatnonzero(ties | (np.abs(x) >= layers.below[words & 1023]))

    return at_once


def plant_no_slack_for_replacing(patch):
    patch.setattr(mechanism, "_apart", lambda *_: 1.0)


def plant_steps_not_rounded(patch):
    patch.setattr(thresholds, "nearest", lambda total, unit, grid: total.double() / unit)


CHECKS = {
    check.__name__: check
    for check in (
        check_bounds,
        check_grid,
        check_law,
        check_tail,
        check_words,
        check_noise,
        check_replaced,
        check_steps,
    )
}
BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "rounded to the nearest, without slack": (plant_nearest, check_bounds),
    "the norm is not looked at after rounding": (plant_no_check_of_the_norm, check_bounds),
    "messages are not rounded": (plant_messages_off_the_grid, check_grid),
    "the grid follows the data": (plant_grid_from_data, check_grid),
    "noise is rounded before it is scaled": (plant_rounded_before_scaling, check_grid),
    "noise is not rounded": (plant_floats, check_grid),
    "noise is used again": (plant_reused, check_noise),
    "half the noise": (plant_half, check_noise),
    "rounded down": (plant_floor, check_law),
    "three per cent less noise": (plant_one_percent, check_law),
    "three bits of the noise are always zero": (plant_coarse_uniforms, check_law),
    "the tail is cut": (plant_cut_tail, check_tail),
    "layers count as sure too far out": (plant_wrong_border, check_words),
    "layers lie one too high": (plant_layers_off_by_one, check_words),
    "what is above the curve is taken": (plant_nothing_refused, check_words),
    "floats decide ties": (plant_ties_by_floats, check_words),
    "no slack where messages are replaced": (plant_no_slack_for_replacing, check_replaced),
    "sums of steps are not rounded": (plant_steps_not_rounded, check_steps),
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_with_nothing_planted_every_check_passes(check):
    check()


@pytest.mark.parametrize(("plant", "check"), BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_caught(plant, check, monkeypatch):
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check()
