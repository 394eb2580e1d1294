"""Cohorts are drawn as they are priced."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from scipy import stats

from bounds import fits_cells, fits_rate
from cloister.errors import CloisterError
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.random.streams import Streams
from cloister.server.cohorts import fixed_size, full, poisson


@pytest.mark.parametrize("secure", [False, True])
def test_poisson_members_come_independently_at_the_rate(secure):
    """Fails without cause in 2 of 1e9 runs: one for the rate, and one for the sizes.

    The wrong rate is accepted with probability below 1e-15 (`test_bounds.py`). Correlations of independent clients are
    0.018 in the mean, with a deviation of 2e-4 for the mean over 4950 pairs: the limit is 60 of them away.
    """
    rounds, clients, sampling_rate = 2000, 100, 0.3
    cohort = poisson(sampling_rate)
    member = torch.zeros(rounds, clients)
    for r in range(rounds):
        member[r, cohort.sample(Streams(7, secure), r, clients)] = 1
    count = int(member.sum())
    assert fits_rate(count, rounds * clients, sampling_rate)
    assert not fits_rate(count, rounds * clients, sampling_rate * 1.05)
    inner = np.arange(22, 39)  # sizes that come up often, and all others together
    sizes, common = member.sum(1).numpy(), stats.binom.pmf(inner, clients, sampling_rate)
    seen = np.array([(sizes == size).sum() for size in inner])
    law = np.append(common, 1 - common.sum())
    assert fits_cells(np.append(seen, rounds - seen.sum()), law)
    assert not fits_cells(rounds * (np.append(inner, 0) == sampling_rate * clients), law), "a fixed size is noticed"
    together = torch.corrcoef(member.T)[~torch.eye(clients, dtype=torch.bool)]
    assert together.abs().mean() < 0.03


class Stingy(Streams):
    """Gives two draws at a time, so that a cohort takes several batches."""

    def protective_uniform(self, count, purpose, *position):
        return super().protective_uniform(2, purpose, *position)

    def protective_integers(self, count, below, purpose, *position):
        return super().protective_integers(2, below, purpose, *position)


ROUNDS = 12_000


def rounds_of(streams: Streams) -> range:
    """Half as many are enough for draws that are the same in every run: they are noticed, or never are."""
    return range(ROUNDS if streams.secure else ROUNDS // 2)


def subsets_fit(cohorts: Iterable[list[int]], probability: dict[tuple[int, ...], float]) -> bool:
    """Whether cohorts can have these probabilities; where they have, 1 of 1e9 runs says that they cannot."""
    seen = Counter(map(tuple, cohorts))
    assert set(seen) <= set(probability)
    return fits_cells(np.array([seen[subset] for subset in probability]), np.array([*probability.values()]))


def coins(clients: int, sampling_rate: float) -> dict[tuple[int, ...], float]:
    """Every subset of the clients, with the probability that independent coins give it."""
    return {
        subset: sampling_rate**size * (1 - sampling_rate) ** (clients - size)
        for size in range(clients + 1)
        for subset in itertools.combinations(range(clients), size)
    }


def uniform(clients: int, size: int) -> dict[tuple[int, ...], float]:
    subsets = list(itertools.combinations(range(clients), size))
    return dict.fromkeys(subsets, 1 / len(subsets))


STREAMS = [Streams(3), Streams(0, secure=True), Stingy(5)]


@pytest.mark.parametrize("streams", STREAMS, ids=["seeded", "secure", "in batches"])
@pytest.mark.parametrize(("sampling_rate", "wrong"), [(0.12, 0.14), (0.5, 0.53), (0.85, 0.88)])
def test_every_poisson_cohort_has_the_probability_that_coins_give_it(streams, sampling_rate, wrong):
    """Fails without cause in 2 of 1e9 runs. Wrong rates are accepted in less than 1 of 1e11 (`test_bounds.py`)."""
    cohorts = [poisson(sampling_rate).sample(streams, round, 4).tolist() for round in rounds_of(streams)]
    assert subsets_fit(cohorts, coins(4, sampling_rate))
    joined, tosses = sum(map(len, cohorts)), 4 * len(cohorts)
    assert fits_rate(joined, tosses, sampling_rate)
    assert not fits_rate(joined, tosses, wrong), "a rate that is a little larger is noticed"


def test_the_test_above_notices_dependence_that_no_single_client_shows():
    """Each client joins with probability 1/2, but the last one always with the first."""
    first, second, third = np.random.default_rng(0).random((3, ROUNDS)) < 0.5
    members = np.stack([first, second, third, first], 1)
    assert not subsets_fit((np.flatnonzero(row).tolist() for row in members), coins(4, 0.5))
    assert all(fits_rate(int(column.sum()), ROUNDS, 0.5) for column in members.T)


@pytest.mark.parametrize("streams", STREAMS, ids=["seeded", "secure", "in batches"])
@pytest.mark.parametrize(
    ("size", "clients"),
    [(1, 5), (3, 6), (4, 5), *(pytest.param(*few, marks=pytest.mark.slow) for few in ((2, 5), (3, 5)))],
)
def test_fixed_cohorts_are_uniform_over_all_subsets(streams, size, clients):
    """Fails without cause in 1 of 1e9 runs. A client that is drawn with weight 1.3 is overlooked in 6 of 1e11."""
    cohorts = (fixed_size(size).sample(streams, round, clients).tolist() for round in rounds_of(streams))
    assert subsets_fit(cohorts, uniform(clients, size))


def test_the_test_above_notices_a_client_that_is_drawn_more_often():
    """Of clients that wait for exponential times, the two who come first are drawn with weights."""
    waits = np.random.default_rng(0).exponential(size=(ROUNDS, 5)) / np.array([1.3, 1, 1, 1, 1])
    cohorts = np.sort(waits.argsort(1)[:, :2], 1).tolist()
    assert not subsets_fit(cohorts, uniform(5, 2))


def test_a_million_million_clients_cost_what_their_cohort_is_large():
    """On anything that costs as much as there are clients, this would not end."""
    clients, sampling_rate = 10**12, 5e-11
    cohorts = [poisson(sampling_rate).sample(Streams(1), r, clients) for r in range(400)]
    count = sum(map(len, cohorts))
    assert stats.kstest(torch.cat(cohorts).numpy() / clients, "uniform").pvalue > 1e-4
    assert stats.poisson.cdf(count, 400 * 50) == pytest.approx(0.5, abs=0.4999)
    assert stats.poisson.sf(count, 400 * 50 * 0.95) < 1e-4, "a rate of a twentieth less is noticed"
    assert stats.poisson.cdf(count, 400 * 50 * 1.05) < 1e-4
    sizes = torch.tensor([float(len(cohort)) for cohort in cohorts])
    assert sizes.var() == pytest.approx(50, rel=0.35)
    for secure in (False, True):
        members = fixed_size(50).sample(Streams(1, secure), 1, clients)
        assert len(members) == 50
        assert_rising(members, clients)


def assert_rising(members: torch.Tensor, clients: int) -> None:
    assert members.dtype == torch.int64
    assert bool((members[1:] > members[:-1]).all())
    assert not len(members) or 0 <= int(members[0]) <= int(members[-1]) < clients


@pytest.mark.parametrize("clients", [0, 1, 2, 1000])
@pytest.mark.parametrize("sampling_rate", [5e-324, 1e-300, 1e-17, 0.3, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("secure", [False, True])
def test_poisson_at_its_limits(clients, sampling_rate, secure):
    """Some of 20,000 coins fall the other way in 2 of 1e12 runs where they do so with probability 2^-53 or 1e-17."""
    for round in range(20):
        members = poisson(sampling_rate).sample(Streams(1, secure), round, clients)
        assert_rising(members, clients)
        if sampling_rate > 0.99:
            assert len(members) == clients
        if sampling_rate < 1e-16:
            assert not len(members)


def test_the_first_and_the_last_client_are_nobody_special():
    """Where a gap begins or ends one too early or too late, one of them shows it."""
    joined = [poisson(0.3).sample(Streams(2), r, 30).tolist() for r in range(4000)]
    for client in (0, 1, 28, 29):
        assert stats.binomtest(sum(client in members for members in joined), 4000, 0.3).pvalue > 1e-4


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(("size", "clients"), [(1, 1), (7, 7), (6, 7), (500, 1000), (501, 1000), (999, 1000)])
def test_fixed_at_its_limits(size, clients, secure):
    for round in range(5):
        members = fixed_size(size).sample(Streams(1, secure), round, clients)
        assert len(members) == size
        assert_rising(members, clients)


@pytest.mark.parametrize("clients", [0, 4])
def test_more_than_everybody_is_refused(clients):
    with pytest.raises(CloisterError, match=f"at most {clients} clients"):
        fixed_size(5).sample(Streams(0), 1, clients)


def test_cohorts_differ_between_rounds_and_seeds():
    one = poisson(0.5).sample(Streams(1), 1, 200)
    assert torch.equal(one, poisson(0.5).sample(Streams(1), 1, 200))
    assert not torch.equal(one, poisson(0.5).sample(Streams(1), 2, 200))
    assert not torch.equal(one, poisson(0.5).sample(Streams(2), 1, 200))


def test_each_is_priced_as_it_is_drawn():
    assert poisson(0.1).event(2.0, 50) == PoissonGaussian(2.0, 0.1)
    assert fixed_size(5).event(2.0, 50) == FixedSizeGaussian(2.0, 5, 50)
    assert full().event(2.0, 50) == Gaussian(2.0)


def test_denominators_are_constants():
    assert poisson(0.1).expected(50) == pytest.approx(5.0)
    assert fixed_size(7).expected(50) == 7
    assert full().expected(50) == 50
    assert full().sample(Streams(0), 1, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("sampling_rate", [0.0, 1.0001, -0.5, float("nan")])
def test_a_rate_is_a_probability(sampling_rate):
    with pytest.raises(CloisterError, match="0 < sampling_rate <= 1"):
        poisson(sampling_rate)


def test_a_size_is_a_count():
    with pytest.raises(CloisterError, match="clients_per_round"):
        fixed_size(0)
