"""Coins: of the right law, exactly, as many as were priced, and a law that is a little off would be noticed."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import cloister as cl
from bounds import fits_cells
from cloister.core import Sensitivity
from cloister.errors import CloisterError
from cloister.mechanisms import binomial
from cloister.privacy.events import BinomialSum, FixedSizeGaussian, Gaussian, PoissonGaussian, Unsupported
from cloister.random import binomial as coins
from cloister.random.binomial import fair_coins
from cloister.random.streams import Streams
from cloister.round import cohort_total
from cloister.round.answer import noise_share
from conftest import ENGINES, federation, toy_task
from conftest import share as noise

CPU = torch.device("cpu")
USUAL = {"trials": 200, "levels": 5, "clip_norm": 1.0, "range": 0.5, "step_delta": 1e-6}
DIMENSION = 30_000
SENT = Sensitivity(length=DIMENSION, integer=True, rounded=(5, 0.5))


def fits(draws: np.ndarray, trials: int, chance: float = 0.5) -> bool:
    """Whether draws have the exact probabilities, rare outcomes taken together; where they have, 1 of 1e9 runs says
    that they do not."""
    law = stats.binom.pmf(np.arange(trials + 1), trials, chance)
    counts = np.bincount(draws, minlength=trials + 1)
    if len(counts) > trials + 1:
        return False
    width = max(1, int(math.sqrt(trials) / 8))  # neighbors together
    cut = -(-(trials + 1) // width) * width - trials - 1
    counts, law = (np.pad(x, (0, cut)).reshape(-1, width).sum(1) for x in (counts, law))
    usual = len(draws) * law > 20
    return fits_cells(np.append(counts[usual], counts[~usual].sum()), np.append(law[usual], law[~usual].sum()))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("trials", [1, 2, 20, 63, 64, 1000, 7114])
def test_the_law_is_right_and_the_test_would_notice_other_coins(trials, secure):
    """Fails without cause in 1 of 1e9 runs. Hardest to notice is one coin of 0.49: n KL is 200 with a deviation of 20,
    and beyond 25 it is rejected (`test_bounds.py`)."""
    draws = fair_coins(1_000_000 if trials < 20 else 200_000, trials, Streams(3, secure), CPU, "noise", 1).numpy()
    assert draws.dtype == np.int64
    assert fits(draws, trials)
    assert not fits(draws, trials, 0.49)
    assert not fits(draws, trials, 0.51)
    assert not fits(draws, max(math.floor(0.95 * trials), trials - 100, 0))
    assert not fits(draws, math.ceil(1.05 * trials))


def test_more_coins_than_a_table_is_made_for_are_tossed_in_turns(monkeypatch):
    monkeypatch.setattr(coins, "_AT_ONCE", 64)
    draws = fair_coins(100_000, 3 * 64 + 7, Streams(5), CPU, "noise", 1).numpy()
    assert fits(draws, 199)
    assert not fits(draws, 199 - 7)


@pytest.mark.parametrize("width", [1, 4, 9])
@pytest.mark.parametrize("trials", [3, 8, 100])
def test_draws_that_their_first_bits_leave_open_are_settled_exactly(width, trials):
    """With so few bits most draws are left open; were these settled carelessly, the law would be another."""
    random = np.random.default_rng(width)
    bits = torch.from_numpy(random.integers(0, 2**width, 4000))
    draws = coins._drawn(bits, trials, width, lambda place, times: int(random.integers(2**63))).numpy()
    assert fits(draws, trials)
    careless = coins._drawn(bits, trials, width, lambda place, times: 2**63 - 1).numpy()
    assert width > 4 or trials <= width or not fits(careless, trials)


@given(trials=st.integers(1, 150), width=st.sampled_from([1, 8, 63, 126]))
def test_thresholds_are_the_bits_of_the_distribution(trials, width):
    total, found = Fraction(0), coins._thresholds(trials, width)
    assert len(found) == trials
    for k, threshold in enumerate(found):
        total += Fraction(math.comb(trials, k), 2**trials)
        assert threshold == math.floor(total * 2**width)


@settings(deadline=None)
@given(trials=st.integers(1, 200), bits=st.lists(st.integers(0, 2**63 - 1), max_size=5))
def test_every_draw_is_the_one_that_its_bits_say(trials, bits):
    """The end of the range included, and bits that are those of a threshold."""
    thresholds = coins._thresholds(trials, 63)
    asked = [*bits, 0, 2**63 - 1, thresholds[0], thresholds[-1], max(thresholds[trials // 2] - 1, 0)]
    found = coins._drawn(torch.tensor(asked), trials, 63, lambda place, times: 0)
    at_most = list(itertools.accumulate(math.comb(trials, k) for k in range(trials)))  # in units of 2^-trials
    for u, heads_up in zip(asked, found.tolist(), strict=True):
        assert heads_up == sum(u << trials >= ways << 63 for ways in at_most)


def share(trust: str, shares: int = 1, client: int = 0, round: int = 1, **more) -> torch.Tensor:
    mechanism = binomial(**{**USUAL, **more}, trust=trust, shares=shares)
    like = torch.zeros(DIMENSION, dtype=torch.int64)
    return noise(mechanism, Streams(1), like, Sensitivity(length=DIMENSION), round, client, 7)


@pytest.mark.parametrize("trust", ["message", "sum"])
def test_a_share_has_mean_zero_and_all_its_coins(trust):
    drawn = share(trust, 4 if trust == "sum" else 1)
    assert drawn.dtype == torch.int64
    assert fits((drawn + 100).numpy(), 200)
    assert not fits((drawn + 100).numpy(), 190)


def test_noise_is_fresh_every_round_and_for_every_client():
    drawn = torch.stack([share("message", client=c, round=r) for c, r in [(0, 1), (1, 1), (-1, 1), (0, 2)]]).double()
    assert (torch.corrcoef(drawn) - torch.eye(4)).abs().max() < 0.05


def test_what_is_priced_is_one_message_or_the_sum_of_as_many_as_are_counted_on():
    expected_size = FixedSizeGaussian(1.0, 10, 600)
    alone, summed = binomial(**USUAL, trust="message"), binomial(**USUAL, trust="sum", shares=50)
    assert alone.account(expected_size, SENT) == BinomialSum(5, 200, 1.0, 0.5, 30_000, 10 / 600, 1e-6)
    assert summed.account(expected_size, SENT) == BinomialSum(5, 50 * 200, 1.0, 0.5, 30_000, 10 / 600, 1e-6)
    assert alone.noise_multiplier == alone.account(expected_size, SENT).noise_multiplier
    assert summed.noise_multiplier == pytest.approx(math.sqrt(50) * alone.noise_multiplier)
    for other in (Gaussian(1.0), PoissonGaussian(1.0, 0.1)):
        assert isinstance(alone.account(other, SENT), Unsupported)


@pytest.mark.parametrize("levels", [16, 17])
@pytest.mark.parametrize("engine", ENGINES[:2], ids=["loop", "vectorized"])
def test_a_broken_update_looks_like_one_that_is_zero(levels, engine):
    """Whole numbers that stand for zero are not all zero where levels are even: of a sample that breaks the gradient,
    a message of exact zeros (and noise) would be a neighbor at more than the distance that is priced."""
    method = cl.methods.cpsgd(1.0, levels, rotate=False, batch_size=4, noise_multiplier=20.0)
    broken, flat = toy_task(sizes=(4, 4)), toy_task(sizes=(4, 4))
    broken.population.inputs[4:] = math.inf
    flat.population.inputs[4:] = 0.0  # and no bias, so that the gradient is zero
    messages = []
    for task in (broken, flat):
        fed, w = federation(method, task=task, model=torch.nn.Linear(6, 3, bias=False))
        found, nonfinite = cohort_total(fed, engine, 1, w, torch.tensor([1]))
        assert nonfinite == (task is broken)
        messages.append(found - noise_share(fed, fed.blank(w, {}), 1, 1, 1))
    assert torch.equal(*messages)
    assert bool(messages[0].any()) is (levels % 2 == 0)


def test_who_is_missing_is_stood_in_for_where_others_count_on_the_noise():
    alone, summed = binomial(**USUAL, trust="message"), binomial(**USUAL, trust="sum", shares=50)
    assert [alone.missing(cohort) for cohort in (0, 3, 60)] == [0, 0, 0]
    assert [summed.missing(cohort) for cohort in (0, 49, 50, 60)] == [50, 1, 0, 0]
    assert alone.most is summed.most is None, "more noise than was priced protects as well"
    assert "secure aggregation" in summed.trust
    assert "secure aggregation" not in alone.trust


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"trials": 201}, "even"),
        ({"trust": "server"}, "one of message, sum"),
        ({"shares": 3}, "private by itself"),
        ({"shares": 0}, "shares"),
        ({"levels": 1}, "levels"),
        ({"step_delta": 0.7}, "step_delta"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, words):
    with pytest.raises(CloisterError, match=words):
        binomial(**{**USUAL, "trust": "message", **wrong})


def test_more_coins_than_anybody_could_toss_are_refused():
    with pytest.raises(CloisterError, match="trials from 1 to 16777216"):
        share("message", trials=2**25)
