"""The noise: of the right scale, and a scale that is 5 % off would be noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy import stats

import cloister as cl
from cloister.core import Sensitivity
from cloister.errors import CloisterError
from cloister.mechanisms import gaussian, none
from cloister.random.streams import Streams
from cloister.round.answer import noise_share
from conftest import federation, share
from contract.catalogue import METHODS

SIZE = 30_000


def accepts(noise: torch.Tensor, scale: float) -> bool:
    """Whether a chi-square test at level 1e-4 accepts the scale of zero-mean Gaussian noise."""
    statistic = float((noise.double() ** 2).sum()) / scale**2
    tail = stats.chi2.cdf(statistic, noise.numel())
    return 5e-5 < tail < 1 - 5e-5


def total(place: str, multiplier: float, clip_norm: float, members: int, round: int = 1, seed: int = 0) -> torch.Tensor:
    mechanism = gaussian(multiplier, place)
    like = torch.empty(SIZE, dtype=torch.float64)
    shares = members if place == "distributed" else 1
    return sum(
        share(mechanism, Streams(seed), like, Sensitivity(clip_norm), round, member, shares) for member in range(shares)
    )


@pytest.mark.parametrize("place", ["central", "distributed"])
@pytest.mark.parametrize("members", [1, 7])
@pytest.mark.parametrize(("multiplier", "clip_norm"), [(1.3, 0.2), (0.4, 3.0)])
def test_the_sum_carries_multiplier_times_clip(place, members, multiplier, clip_norm):
    noise = total(place, multiplier, clip_norm, members)
    assert accepts(noise, multiplier * clip_norm)
    assert not accepts(noise, 1.05 * multiplier * clip_norm)
    assert not accepts(noise, 0.95 * multiplier * clip_norm)
    assert stats.kstest(noise.numpy() / (multiplier * clip_norm), "norm").pvalue > 1e-4


def test_noise_is_fresh_every_round_and_for_every_member():
    rounds = [total("central", 1.0, 1.0, 1, round=r) for r in (1, 2, 3)]
    assert abs(torch.corrcoef(torch.stack(rounds))[0, 1]) < 0.05
    mechanism, like = gaussian(1.0, "distributed"), torch.empty(SIZE)
    shares = [share(mechanism, Streams(0), like, Sensitivity(1.0), 1, member, 5) for member in range(5)]
    assert (torch.corrcoef(torch.stack(shares)) - torch.eye(5)).abs().max() < 0.05


@pytest.mark.parametrize("mechanism", [cl.mechanisms.banded(1.0, 3), cl.mechanisms.tree(1.0, 4)], ids=lambda m: m.name)
@pytest.mark.parametrize("cohort", [cl.poisson(0.5), cl.full(), cl.cyclic(4)], ids=lambda cohort: cohort.name)
def test_noise_that_is_correlated_is_for_clients_that_come_seldom(mechanism, cohort):
    """Whatever the method: a client in two rounds whose noise cancels would have less of it than was priced."""
    method = replace(METHODS["dp_fedavg"](), mechanism=mechanism)
    with pytest.raises(CloisterError, match=r"correlated over as many"):
        federation(method, cohort)
    federation(method, cl.cyclic(2))


def test_no_noise_is_no_noise():
    like = torch.ones(4)
    assert torch.equal(share(none(), Streams(0), like, Sensitivity(), 1, 0, 1), torch.zeros(4))
    assert torch.equal(share(gaussian(0.0), Streams(0), like, Sensitivity(), 1, 0, 1), torch.zeros(4))


def test_calibrated_keeps_the_place():
    mechanism = replace(gaussian(None, "distributed"), noise_multiplier=2.5)
    like = torch.empty(SIZE, dtype=torch.float64)
    assert accepts(share(mechanism, Streams(0), like, Sensitivity(2.0), 1, 0, 1), 5.0)
    open_one = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise="distributed")
    fed, w = federation(open_one)
    with pytest.raises(CloisterError, match="calibrated"):
        noise_share(fed, w, 1, 0, 1)


def test_the_multiplier_that_is_priced_is_the_one_that_is_used():
    louder = replace(gaussian(0.01), noise_multiplier=5.0)
    noise = share(louder, Streams(0), torch.empty(SIZE, dtype=torch.float64), Sensitivity(1.0), 1, 0, 1)
    assert accepts(noise, 5.0)
    for place in ("nowhere", "server"):
        with pytest.raises(CloisterError, match="place"):
            replace(gaussian(1.0), place=place)


@pytest.mark.parametrize("multiplier", [-0.1, float("nan"), float("inf")])
def test_a_multiplier_is_a_finite_number(multiplier):
    with pytest.raises(CloisterError, match="noise_multiplier"):
        gaussian(multiplier)


def test_the_place_is_known():
    with pytest.raises(CloisterError, match="one of central, distributed"):
        gaussian(1.0, "elsewhere")
