"""Cohorts are drawn as they are priced."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from cloister.cohorts import everyone, fixed, poisson
from cloister.errors import CloisterError
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.streams import Streams


@pytest.mark.parametrize("secure", [False, True])
def test_poisson_members_come_independently_at_the_rate(secure):
    rounds, clients, rate = 400, 100, 0.3
    cohort = poisson(rate)
    member = torch.zeros(rounds, clients)
    for r in range(rounds):
        member[r, cohort.sample(Streams(7, secure), r, clients)] = 1
    count = int(member.sum())
    assert stats.binomtest(count, rounds * clients, rate).pvalue > 1e-4
    assert stats.binomtest(count, rounds * clients, rate * 1.05).pvalue < 1e-4
    sizes = member.sum(1)
    expected_variance = clients * rate * (1 - rate)
    assert sizes.var() == pytest.approx(expected_variance, rel=0.35), "a fixed size would have no variance"
    together = torch.corrcoef(member.T)[~torch.eye(clients, dtype=torch.bool)]
    assert together.abs().mean() < 0.06


class Stingy(Streams):
    """Gives two draws at a time, so that a cohort takes several batches."""

    def protective_uniform(self, count, purpose, *position):
        return super().protective_uniform(2, purpose, *position)

    def protective_integers(self, count, below, purpose, *position):
        return super().protective_integers(2, below, purpose, *position)


def subsets_fit(sample: Callable[[int], list[int]], probability: dict[tuple[int, ...], float]) -> float:
    """The p-value of the hypothesis that cohorts of round 1, 2, ... have these probabilities."""
    rounds = 6000
    seen = Counter(tuple(sample(round)) for round in range(rounds))
    assert set(seen) <= set(probability)
    expected = [rounds * share for share in probability.values()]
    return stats.chisquare([seen[subset] for subset in probability], expected).pvalue


def coins(clients: int, rate: float) -> dict[tuple[int, ...], float]:
    """Every subset of the clients, with the probability that independent coins give it."""
    return {
        subset: rate**size * (1 - rate) ** (clients - size)
        for size in range(clients + 1)
        for subset in itertools.combinations(range(clients), size)
    }


def uniform(clients: int, size: int) -> dict[tuple[int, ...], float]:
    subsets = list(itertools.combinations(range(clients), size))
    return dict.fromkeys(subsets, 1 / len(subsets))


STREAMS = [Streams(3), Streams(0, secure=True), Stingy(5)]


@pytest.mark.parametrize("streams", STREAMS, ids=["seeded", "secure", "in batches"])
@pytest.mark.parametrize(("rate", "wrong"), [(0.12, 0.14), (0.5, 0.53), (0.85, 0.88)])
def test_every_poisson_cohort_has_the_probability_that_coins_give_it(streams, rate, wrong):
    def sample(round: int) -> list[int]:
        return poisson(rate).sample(streams, round, 4).tolist()

    assert subsets_fit(sample, coins(4, rate)) > 1e-4
    assert subsets_fit(sample, coins(4, wrong)) < 1e-4, "a rate that is a little larger is noticed"


def test_the_test_above_notices_dependence_that_no_single_client_shows():
    random = np.random.default_rng(0)

    def neighbours_together(round: int) -> list[int]:
        """Each client joins with probability 1/2, but the last one always with the first."""
        first, second, third = random.random(3) < 0.5
        return [client for client, joins in enumerate((first, second, third, first)) if joins]

    assert subsets_fit(neighbours_together, coins(4, 0.5)) < 1e-4
    rounds = [neighbours_together(r) for r in range(4000)]
    assert all(stats.binomtest(sum(c in r for r in rounds), 4000, 0.5).pvalue > 1e-4 for c in range(4))


@pytest.mark.parametrize("streams", STREAMS, ids=["seeded", "secure", "in batches"])
@pytest.mark.parametrize(("size", "clients"), [(1, 5), (2, 5), (3, 6), (3, 5), (4, 5)])
def test_fixed_cohorts_are_uniform_over_all_subsets(streams, size, clients):
    assert subsets_fit(lambda r: fixed(size).sample(streams, r, clients).tolist(), uniform(clients, size)) > 1e-4


def test_the_test_above_notices_a_client_that_is_drawn_a_little_more_often():
    random = np.random.default_rng(0)
    weights = np.array([1.1, 1, 1, 1, 1]) / 5.1

    def biased(round: int) -> list[int]:
        return sorted(random.choice(5, 2, replace=False, p=weights).tolist())

    assert subsets_fit(biased, uniform(5, 2)) < 1e-4


def test_a_million_million_clients_cost_what_their_cohort_is_large():
    """On anything that costs as much as there are clients, this would not end."""
    clients, rate = 10**12, 5e-11
    cohorts = [poisson(rate).sample(Streams(1), r, clients) for r in range(400)]
    count = sum(map(len, cohorts))
    assert stats.kstest(torch.cat(cohorts).numpy() / clients, "uniform").pvalue > 1e-4
    assert stats.poisson.cdf(count, 400 * 50) == pytest.approx(0.5, abs=0.4999)
    assert stats.poisson.sf(count, 400 * 50 * 0.95) < 1e-4, "a rate of a twentieth less is noticed"
    assert stats.poisson.cdf(count, 400 * 50 * 1.05) < 1e-4
    sizes = torch.tensor([float(len(cohort)) for cohort in cohorts])
    assert sizes.var() == pytest.approx(50, rel=0.35)
    for secure in (False, True):
        members = fixed(50).sample(Streams(1, secure), 1, clients)
        assert len(members) == 50
        assert_rising(members, clients)


def assert_rising(members: torch.Tensor, clients: int) -> None:
    assert members.dtype == torch.int64
    assert bool((members[1:] > members[:-1]).all())
    assert not len(members) or 0 <= int(members[0]) <= int(members[-1]) < clients


@pytest.mark.parametrize("clients", [0, 1, 2, 1000])
@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e-17, 0.3, 1 - 2**-53, 1.0])
@pytest.mark.parametrize("secure", [False, True])
def test_poisson_at_its_limits(clients, rate, secure):
    for round in range(20):
        members = poisson(rate).sample(Streams(1, secure), round, clients)
        assert_rising(members, clients)
        if rate > 0.99:
            assert len(members) == clients
        if rate < 1e-16:
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
        members = fixed(size).sample(Streams(1, secure), round, clients)
        assert len(members) == size
        assert_rising(members, clients)


@pytest.mark.parametrize("clients", [0, 4])
def test_more_than_everybody_is_refused(clients):
    with pytest.raises(CloisterError, match=f"at most {clients} clients"):
        fixed(5).sample(Streams(0), 1, clients)


def test_cohorts_differ_between_rounds_and_seeds():
    one = poisson(0.5).sample(Streams(1), 1, 200)
    assert torch.equal(one, poisson(0.5).sample(Streams(1), 1, 200))
    assert not torch.equal(one, poisson(0.5).sample(Streams(1), 2, 200))
    assert not torch.equal(one, poisson(0.5).sample(Streams(2), 1, 200))


def test_each_is_priced_as_it_is_drawn():
    assert poisson(0.1).event(2.0, 50) == PoissonGaussian(2.0, 0.1)
    assert fixed(5).event(2.0, 50) == FixedSizeGaussian(2.0, 5, 50)
    assert everyone().event(2.0, 50) == Gaussian(2.0)


def test_denominators_are_constants():
    assert poisson(0.1).expected(50) == pytest.approx(5.0)
    assert fixed(7).expected(50) == 7
    assert everyone().expected(50) == 50
    assert everyone().sample(Streams(0), 1, 3).tolist() == [0, 1, 2]


@pytest.mark.parametrize("rate", [0.0, 1.0001, -0.5, float("nan")])
def test_a_rate_is_a_probability(rate):
    with pytest.raises(CloisterError, match="0 < rate <= 1"):
        poisson(rate)


def test_a_size_is_a_count():
    with pytest.raises(CloisterError, match="size"):
        fixed(0)
