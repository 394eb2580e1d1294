"""Cohorts are drawn as they are priced."""

from __future__ import annotations

import itertools
from collections import Counter

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


def test_fixed_cohorts_are_uniform_over_all_subsets():
    seen = Counter(tuple(fixed(2).sample(Streams(1), r, 5).tolist()) for r in range(3000))
    assert set(seen) == set(itertools.combinations(range(5), 2))
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


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
