"""A private mean and private second moments of the inputs: what is released, what it costs, and what inputs become."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.client.centering import Centering
from cloister.client.population import Population
from cloister.client.preprocessing import plain
from cloister.errors import BudgetExceededError, CloisterError, Corrupted
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Gaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.unit import sample_account
from cloister.round.queries import Query, _second_moments, ask, closed, contribution, grid_for
from cloister.runs import statistics as released_before_training
from cloister.runs.folder import RunFolder
from conftest import federation, killed_in_round, prepared, toy_task

CLIENTS = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_steps=1)
SAMPLES = cl.methods.pfl(clip_norm=0.5, lr=0.1, batch_size=100, momentum=0.0)
SUMS = cl.methods.pfl(clip_norm=0.5, lr=0.1, trust="sum", sample_rate=1.0, momentum=0.0)


def skewed(sizes=(30, 20, 40), shape=(2, 3)):
    """Inputs with a common part and one direction in which they vary most."""
    random = np.random.default_rng(2)
    owner = np.repeat([f"site {n}" for n in range(len(sizes))], sizes)
    numbers = math.prod(shape)
    along = random.normal(size=(len(owner), 1)) * np.eye(numbers)[1] * 3
    x = 2.0 + along + random.normal(size=(len(owner), numbers)) * 0.5
    y = (along[:, 1] > 0).astype(int)
    return cl.data.from_arrays(x.reshape(-1, *shape).astype(np.float32), y, owner, test=0.2, classes=2)


def go(method=SAMPLES, **more):
    usual = {"rounds": 3, "epsilon": 3.0, "delta": 1e-3, "center": 0.1, "decorrelate": 0.2, "engine": "loop"}
    return cl.run(method, skewed((30, 30, 30)), **{**usual, "progress": False, **more})


def reference(task, by_client: bool):
    """Mean, second moments and the inputs after both, written out in numpy, sample by sample."""
    people = task.population
    unit = [x.numpy().ravel().astype(float) / np.linalg.norm(x) for x in people.inputs]
    owner = np.repeat(np.arange(people.clients), people.counts)
    weight = 1 / people.counts.numpy()[owner] / people.clients if by_client else np.full(len(unit), 1 / len(unit))
    mean = sum(w * x for w, x in zip(weight, unit, strict=True))
    centered = [(x - mean) / np.linalg.norm(x - mean) for x in unit]
    moments = sum(w * np.outer(x, x) for w, x in zip(weight, centered, strict=True))
    values, vectors = np.linalg.eigh(moments)
    seen = []
    for x in centered:
        for value, u in zip(values, vectors.T, strict=True):
            if value > 1e-4:
                x = x - (1 - math.sqrt(1e-4 / value)) * (x @ u) * u
        seen.append(x / np.linalg.norm(x))
    return mean, np.stack(seen)


@pytest.mark.parametrize("by_client", [True, False])
def test_without_noise_inputs_become_what_a_plain_computation_gives(by_client):
    task = skewed()
    own = cl.methods.pfl(clip_norm=0.5, lr=0.1, batch_size=100, noise_multiplier=0.0)
    method = cl.methods.fedavg(lr=0.1, local_steps=1) if by_client else own
    ready = prepared(method, task, center=0.1, decorrelate=0.1, dtype="float64", delta=None)
    released_before_training.statistics(ready, Ledger.create(None, "test", {}))
    mean, seen = reference(task, by_client)
    np.testing.assert_allclose(ready.standardization.mean.numpy(), mean, atol=1e-6)
    found = ready.standardization.preprocessing.test(task.population.inputs, torch.float64)
    np.testing.assert_allclose(found.flatten(1).numpy(), seen, atol=1e-4)
    assert found.shape == task.population.inputs.shape


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES, SUMS], ids=["clients", "samples", "sums"])
def test_a_run_spends_its_budget_and_says_what_it_released(method):
    run = go(method)
    assert 2.9 < run.epsilon <= 3.0
    assert "a noisy mean of the inputs, each of length 1" in run.certificate.released
    assert "second moments of the centered inputs" in run.certificate.released


def test_shares_add_up_as_gaussian_releases_do():
    """Full batches: rounds, mean and second moments are Gaussian releases whose 1/z^2 add up to the whole budget's."""
    run = go(SAMPLES, rounds=4)
    z = run.certificate.noise_multiplier
    whole = 4 / z**2 / (1 - 0.1 - 0.2)
    assert epsilon_of(Gaussian(whole**-0.5), 1, 1e-3) == pytest.approx(3.0, rel=5e-3)


@pytest.mark.parametrize(("method", "spread"), [(SAMPLES, math.sqrt(3)), (SUMS, 1.0), (CLIENTS, 1.0)])
def test_second_moments_carry_the_noise_that_is_paid_for(method, spread):
    """Over zeros all that is left is noise: of every client where each is private by itself, of one in a secure sum.

    60 x 24 x 24 draws: a deviation that is off by 3 % is 8 deviations away (false failure below 1e-14).
    """
    fed, _ = federation(method, task=toy_task((4, 4, 4)))
    query = Query("test", 24, lambda inputs, labels: torch.zeros(len(inputs), 24), (2.0,), second_moments=True)
    asked = [ask(fed, Ledger.create(None, "test", {}), query, {}, fed.population, n) for n in range(60)]
    units = 3 if method is CLIENTS else 12
    found = float(torch.stack([one.mean for one in asked]).double().std()) * units
    assert found == pytest.approx(2.0 * spread, rel=0.03)
    assert asked[0].noise * units == pytest.approx(2.0 * spread, rel=1e-6), "which is also what it is said to be"
    assert found != pytest.approx(spread, rel=0.03)


def test_in_a_secure_sum_the_honest_members_cover_whoever_needs_most():
    """Of four shares, each half of what one alone would need, one quarter of the members is counted on: any one of
    them. 60 x 24 x 24 draws: a deviation that is off by 3 % is 8 deviations away (false failure below 1e-14)."""
    method = cl.methods.pfl(clip_norm=0.5, lr=0.1, trust="sum", sample_rate=1.0, momentum=0.0, honest_fraction=0.25)
    fed, _ = federation(method, task=toy_task((4, 4, 4, 4)))
    needs = (0.5, 2.0, 1.0, 0.25)
    query = Query("test", 24, lambda inputs, labels: torch.zeros(len(inputs), 24), needs, second_moments=True)
    everybody, own = range(4), []
    for round in range(60):
        total, others = (contribution(fed, query, fed.population, some, round, 4) for some in (everybody, range(1, 4)))
        own.append((total - others).double())
    assert float(torch.stack(own).std()) == pytest.approx(2.0, rel=0.03)
    found = closed(fed, query, total, everybody, [4] * 4, 0, 4)
    assert found.noise * 16 == pytest.approx(4.0), "all four"


def test_a_sum_that_is_rounded_as_a_whole_has_noise_for_that():
    """The grid follows from whoever needs most. Where that is coarse for others, a sample may move each of their 24 x
    24 numbers by a point of it. 6 draws of these: a deviation that is off by 10 % is 8 deviations away (1e-14)."""
    fed = prepared(SAMPLES, toy_task((4, 4)), epsilon=3.0, rounded_noise=True).fed
    query = Query("test", 24, lambda inputs, labels: torch.zeros(len(inputs), 24), (2.0**40, 2.0), second_moments=True)
    assert grid_for(fed, query) == 2.0**7
    found = torch.stack([contribution(fed, query, fed.population, [1], round, 1) for round in range(6)])
    assert float(found.double().std()) == pytest.approx(2.0 * (1 + 24 * 2.0**7), rel=0.1)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("method", [CLIENTS, SAMPLES, SUMS], ids=["clients", "samples", "sums"])
def test_two_questions_of_one_round_are_answered_under_different_noise(method, rounded):
    """Under the same noise, what two answers have in common could be subtracted. 576 normal draws and as many others
    are correlated by more than 0.3 in one of 1e12 cases."""
    fed = prepared(method, toy_task((4, 4)), epsilon=3.0, rounded_noise=rounded).fed

    def answer(name: str, round: int = 0, moments: bool = False) -> torch.Tensor:
        length = 24 if moments else 576
        query = Query(name, length, lambda inputs, labels: torch.zeros(len(inputs), length), (2.0,), moments)
        return ask(fed, Ledger.create(None, "test", {}), query, {}, fed.population, round).mean

    one, others = answer("mean"), [answer("second moments", moments=True), answer("statistics"), answer("mean", 1)]
    assert torch.equal(one, answer("mean"))
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.3


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])
def test_second_moments_of_anything_are_bounded(method):
    """Whatever is computed: a row that is too long is cut, one that is not finite is nothing."""
    fed, _ = federation(method, task=toy_task((2, 2)))
    rows = torch.tensor([[100.0, 0.0], [math.nan, 1.0], [0.0, 3.0], [math.inf, 0.0]])
    query = Query("test", 2, lambda inputs, labels: rows[: len(inputs)], (0.0,), second_moments=True)
    mean = ask(fed, Ledger.create(None, "test", {}), query, {}, fed.population, 0).mean
    assert float(mean.norm()) <= 1.0


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES, SUMS], ids=["clients", "samples", "sums"])
def test_nobody_is_answered_who_cannot_pay(method):
    fed, _ = federation(method, task=toy_task((4, 3)))
    units = [fed.unit] if method is CLIENTS else [sample_account(0), sample_account(1)]
    ledger = Ledger.create(None, "test", dict.fromkeys(units, Budget(0.1, 1e-3)))
    computed = []
    query = Query("test", 6, lambda inputs, labels: computed.append(1) or inputs, (1.0,))
    with pytest.raises(BudgetExceededError):
        ask(fed, ledger, query, {unit: Charge(Gaussian(1.0)) for unit in units}, fed.population, 0)
    assert not computed


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES, SUMS], ids=["clients", "samples", "sums"])
def test_a_sum_of_second_moments_counts_every_sample_once(method):
    """More of it would have no more noise; eigenvalues are compared with one another, so that nobody would see it."""
    fed, _ = federation(method, task=toy_task((4, 0, 3, 1)))
    query = Query("test", 6, lambda inputs, labels: inputs / inputs.norm(dim=1, keepdim=True), (0.0,), True)
    found = contribution(fed, query, fed.population, [0, 2, 3], 0, 3).view(6, 6)
    unit = [x.numpy() / np.linalg.norm(x.numpy()) for x in fed.population.inputs]
    weight = [1 / 4] * 4 + [1 / 3] * 3 + [1] if method is CLIENTS else [1] * 8
    wanted = sum(w * np.outer(x, x) for w, x in zip(weight, unit, strict=True))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)


def test_a_sample_moves_a_long_sum_of_second_moments_by_one_at_most():
    """In float32 the roundings of a sum over 60,000 samples made that 1.0001."""
    random = torch.Generator().manual_seed(0)
    rows = 1 + 0.01 * torch.randn(60_000, 60, generator=random)
    query = Query("test", 60, lambda inputs, labels: inputs, (0.0,), second_moments=True)

    def total(inputs):
        labels, one = torch.zeros(len(inputs), dtype=torch.int64), torch.tensor([len(inputs)])
        return _second_moments(query, Population(inputs, labels, torch.tensor([0]), one), range(1))

    whole = total(rows)
    for out in (0, 1000):
        assert float((whole - total(torch.cat([rows[:out], rows[out + 1 :]]))).norm()) <= 1


def test_an_interrupted_run_keeps_what_was_released(tmp_path, monkeypatch):
    whole = go(folder=tmp_path / "whole")
    with killed_in_round(monkeypatch, 2):
        go(folder=tmp_path / "torn", checkpoint_every=1)
    resumed = go(folder=tmp_path / "torn", checkpoint_every=1, resume=True)
    assert resumed.epsilon == pytest.approx(whole.epsilon)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def kept(folder):
    """The bits of what was released before the first round."""
    tensors = RunFolder.open(folder).checkpoint().tensors
    return {name: bytes(one.data) for name, one in tensors.items() if "released" in name}


def test_what_was_released_with_secure_noise_is_not_released_again(tmp_path, monkeypatch):
    """Another answer to the same question would have other noise: their mean would have less than was paid for."""
    folder = tmp_path / "torn"
    with killed_in_round(monkeypatch, 2):
        go(folder=folder, checkpoint_every=1, secure_rng=True)
    before = kept(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rounds that are paid for twice
        go(folder=folder, checkpoint_every=1, secure_rng=True, resume=True)
    assert len(before) == 3, "mean, axes, and what is removed"
    assert kept(folder) == before
    asked = [entry.what for entry in Ledger.open(folder / "ledger.jsonl", writable=False).entries if entry.round == 0]
    assert sorted(asked) == ["mean"] * 3 + ["second moments"] * 3, "once of each of three clients"


def test_a_loaded_model_sees_centered_inputs(tmp_path):
    run = go(folder=tmp_path / "run", center_rank=1)
    task = skewed((30, 30, 30))
    loaded = cl.load(tmp_path / "run")
    assert loaded.evaluate(task.test_inputs, task.test_labels)["accuracy"] == pytest.approx(run.accuracy)


def test_a_smooth_mean_loses_less_to_noise():
    """A mean of rank 1 and noise of the same norm: the nearest matrix of rank 1 has most of the noise taken off."""
    generator = torch.Generator().manual_seed(0)
    true = torch.outer(torch.rand(40, generator=generator), torch.rand(30, generator=generator))
    noisy = true + torch.randn(40, 30, generator=generator) * true.norm() / math.sqrt(1200)
    centering = Centering.begin(plain(), torch.zeros(1, 40, 30), torch.float32, 1, False)
    centering.queries[0].receive(noisy.flatten(), 0.0)
    assert (centering.mean.view(40, 30) - true).norm() < 0.4 * (noisy - true).norm()


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        ({"center": 0.0}, "0 < center < 1"),
        ({"center": 0.6, "decorrelate": 0.5}, "leave something for training"),
        ({"center": None}, "center beside decorrelate"),
        ({"standardize": 0.1}, "standardize or center"),
        ({"center_rank": 3}, "center_rank of at most 2"),
    ],
)
def test_what_makes_no_sense_is_refused(keys, wanted):
    with pytest.raises(CloisterError, match=wanted):
        go(**keys)


def test_a_damaged_file_is_refused():
    centering = Centering.begin(plain(), torch.zeros(1, 2, 3), torch.float32, None, True)
    found = centering.to_json()
    assert Centering.from_json(plain(), found).mean.shape == (6,)
    with pytest.raises(Corrupted):
        Centering.from_json(plain(), {**found, "mean": found["mean"][:8]})
