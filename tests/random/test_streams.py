from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from bounds import fits_cells, fits_curve
from cloister.random.streams import Streams, coins, fold, uniform


def test_the_same_place_gives_the_same_draws_and_another_place_gives_others():
    streams = Streams(seed=3)
    like = torch.empty(50)
    context = streams.protective_normal(like, "noise", 4, 7)
    assert torch.equal(context, Streams(3).protective_normal(like, "noise", 4, 7))
    others = [("noise", 4, 8), ("noise", 5, 7), ("cohort", 4, 7), ("noise", 47), ("noise", 4, 7, 0)]
    for purpose, *position in others:
        assert not torch.equal(context, streams.protective_normal(like, purpose, *position))
    assert not torch.equal(context, Streams(4).protective_normal(like, "noise", 4, 7))


def test_keys_do_not_run_into_one_another():
    streams = Streams(0)
    keys = {streams.key("noise", r, c) for r in range(100) for c in range(-1, 30)}
    assert len(keys) == 3100
    assert streams.key("noise", 1, 12) != streams.key("noise", 11, 2)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_protective_draws_have_the_right_law_and_the_test_would_notice(secure, dtype):
    """Of 400,001 draws, distances beyond 0.0052 are rejected: 2 of 1e9 runs fail, one for each law.

    Draws that are 5 % too large are 0.0118 away, and are accepted only if their own distribution is 0.0066 from its
    law, which has probability 2 exp(-2 n 0.0066^2) < 2e-15. A uniform to the power 1.05 is 0.0179 away. Rounding to
    float32 moves a distribution by less than 1e-7.
    """
    streams, count = Streams(1, secure), 400_001
    draws = streams.protective_normal(torch.empty(count, dtype=dtype), "noise", 1).double().numpy()
    assert fits_curve(draws, special.ndtr)
    assert not fits_curve(draws * 1.05, special.ndtr)
    flat = streams.protective_uniform(count, "cohort", 1).numpy()
    assert fits_curve(flat, np.asarray)
    assert not fits_curve(flat**1.05, np.asarray)
    assert 0 <= flat.min() <= flat.max() < 1


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("below", [1, 2, 3, 7, 10])
def test_whole_numbers_are_equally_likely_and_the_test_would_notice(secure, below):
    """Fails without cause in 1 of 1e9 runs. The remainders are seeded: they are rejected, or never are."""
    draws = Streams(1, secure).protective_integers(20_000, below, "cohort", 1)
    assert draws.dtype == torch.int64
    seen, equal = torch.bincount(draws, minlength=below).numpy(), np.full(below, 1 / below)
    assert len(seen) == below
    assert fits_cells(seen, equal)
    remainders = np.bincount(np.random.default_rng(0).integers(0, 16, 20_000) % below, minlength=below)
    assert below in (1, 2) or not fits_cells(remainders, equal), "the remainder of four bits"


@pytest.mark.parametrize("secure", [False, True])
def test_large_whole_numbers_are_not_remainders(secure):
    """Of 64 bits, the remainder below 3/4 of their range would take its lowest third twice as often.

    Fails without cause in 1 of 1e9 runs: distances beyond 0.052 are rejected, and remainders are 1/6 away.
    """
    below = 3 * 2**61
    draws = Streams(1, secure).protective_integers(4000, below, "cohort", 1).numpy()
    assert 0 <= draws.min() <= draws.max() < below
    assert fits_curve(draws / below, np.asarray)
    bits = np.random.default_rng(0).integers(0, 2**63, 4000)
    assert not fits_curve((bits % below) / below, np.asarray)


def test_whole_numbers_follow_from_their_place():
    streams = Streams(3)
    context = streams.protective_integers(20, 1000, "cohort", 4, 0)
    assert torch.equal(context, Streams(3).protective_integers(20, 1000, "cohort", 4, 0))
    assert not torch.equal(context, streams.protective_integers(20, 1000, "cohort", 4, 1))
    assert not torch.equal(context, Streams(3, run="b").protective_integers(20, 1000, "cohort", 4, 0))
    secure = [Streams(3, secure=True).protective_integers(20, 1000, "cohort", 4, 0) for _ in range(2)]
    assert not torch.equal(*secure), "by chance, in 1 of 1e60 runs"
    assert len(Streams(3, secure=True).protective_integers(0, 5, "cohort")) == 0


def test_secure_draws_do_not_follow_from_the_seed():
    """Twenty draws of at least 20 bits agree with twenty others by chance in 1 of 1e120 runs."""
    like = torch.empty(20)
    assert not torch.equal(
        Streams(1, secure=True).protective_normal(like, "noise", 1),
        Streams(1, secure=True).protective_normal(like, "noise", 1),
    )
    assert not torch.equal(
        Streams(1, secure=True).protective_uniform(20, "cohort", 1),
        Streams(1, secure=True).protective_uniform(20, "cohort", 1),
    )


def test_tensor_streams_are_uniform_and_uncorrelated():
    keys = fold(torch.tensor(5), torch.arange(200))
    draws = torch.stack([uniform(key, (100,)) for key in keys]).numpy()
    assert stats.kstest(draws.ravel(), "uniform").pvalue > 1e-4
    assert np.abs(np.corrcoef(draws)[np.triu_indices(200, 1)]).mean() < 0.1
    assert np.abs(np.corrcoef(draws.T)[np.triu_indices(100, 1)]).mean() < 0.1


def test_tensor_streams_agree_under_vmap():
    keys = fold(torch.tensor(5), torch.arange(7))
    mapped = torch.func.vmap(lambda key: uniform(key, (3, 2)))(keys)
    assert torch.equal(mapped, torch.stack([uniform(key, (3, 2)) for key in keys]))


def test_seeded_noise_does_not_repeat_over_many_rounds_and_clients():
    """Torch's CPU generator keeps 32 bits of a seed, which collide after some ten thousand draws."""
    streams, like = Streams(0), torch.empty(2, dtype=torch.float64)
    seen = {tuple(streams.protective_normal(like, "noise", r, c).tolist()) for r in range(300) for c in range(100)}
    assert len(seen) == 30_000
    assert not torch.equal(
        streams.protective_normal(like, "noise", 303, 51), streams.protective_normal(like, "noise", 430, 12)
    )


def test_runs_with_one_seed_have_noise_of_their_own():
    like = torch.empty(20)
    one, other = Streams(0, run="a"), Streams(0, run="b")
    assert not torch.equal(one.protective_normal(like, "noise", 1), other.protective_normal(like, "noise", 1))
    assert not torch.equal(one.protective_uniform(9, "cohort", 1), other.protective_uniform(9, "cohort", 1))
    assert one.key("batches", 1) == other.key("batches", 1)


@pytest.mark.parametrize("probability", [0.25, 0.5, 0.9])
def test_coins_fall_as_often_as_they_should_and_know_nothing_of_each_other(probability):
    """Seeded: positions, neighbors and keys, against what 2,000 keys of 2,000 coins allow (six deviations)."""
    keys = fold(torch.tensor(7), torch.arange(2000))
    thrown = torch.func.vmap(lambda key: coins(key, (2000,), probability))(keys).double() - probability
    variance = probability * (1 - probability)
    assert thrown.mean().abs() < 6 * (variance / thrown.numel()) ** 0.5
    for dim in (0, 1):
        assert thrown.mean(dim).abs().max() < 6 * (variance / 2000) ** 0.5
        for lag in (1, 2, 3, 16, 64, 256, 1024):
            pairs = thrown.narrow(dim, lag, 2000 - lag) * thrown.narrow(dim, 0, 2000 - lag)
            assert pairs.mean().abs() < 6 * variance / pairs.numel() ** 0.5
    assert not (thrown + 0.01).mean().abs() < 6 * (variance / thrown.numel()) ** 0.5, "the test would notice"


def test_coins_of_one_sample_are_those_of_its_place():
    whole = coins(torch.tensor(9), (3, 50), 0.3)
    apart = [coins(torch.tensor(9), (50,), 0.3, torch.tensor(slot)) for slot in range(3)]
    assert torch.equal(whole, torch.stack(apart))
    assert not coins(torch.tensor(9), (1000,), 0.0).any()
    assert coins(torch.tensor(9), (1000,), 1.0).all()


@pytest.mark.parametrize("bit", [0, 31, 32, 40, 62])
def test_coins_depend_on_every_part_of_their_key(bit):
    """Under keys that differ in one bit, of either half, many of 4,000 fair coins differ. (Not half: keys are hashes,
    which differ in all bits.)"""
    key = 0x123456789ABCDEF
    one, other = (coins(torch.tensor(k), (4000,), 0.5) for k in (key, key ^ (1 << bit)))
    assert int((one != other).sum()) > 1000
    assert torch.equal(torch.func.vmap(lambda k: coins(k, (4000,), 0.5))(torch.tensor([key ^ (1 << bit)]))[0], other)
