"""A private mean and variance of the inputs: what it costs, what it releases, and that it survives an interruption."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import cloister as cl
from cloister.client.population import Population
from cloister.client.preprocessing import plain
from cloister.client.standardization import Standardization
from cloister.errors import CloisterError, RepeatedRounds
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.round import queries
from cloister.round.queries import Query, ask
from cloister.runs import statistics as released_before_training
from cloister.runs.folder import RunFolder
from conftest import Killed, federation, killed_in_round, prepared, toy_task

CLIENTS = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_steps=1)
SAMPLES = cl.methods.pfl(clip_norm=0.5, lr=0.1, batch_size=4)


def shifted(sizes=(40, 25, 60, 35), features: int = 3):
    """Features whose means and deviations are known and are not 0 and 1."""
    random = np.random.default_rng(1)
    owner = np.repeat([f"hospital {n}" for n in range(len(sizes))], sizes)
    x = random.normal(size=(len(owner), features)) * 0.1 + np.array([0.5, -0.3, 0.0])
    return cl.data.from_arrays(x, (x[:, 0] > 0.5).astype(int), owner, test=0.2, classes=2)


def go(method=CLIENTS, task=None, **more):
    usual = {"rounds": 3, "epsilon": 3.0, "delta": 1e-3, "standardize": 0.1, "engine": "loop", "progress": False}
    return cl.run(method, task or shifted((30, 30, 30)), **{**usual, **more})  # one price for all


def test_without_noise_it_is_the_mean_and_deviation():
    """Client by client where clients count alike; written out in numpy."""
    task = shifted()
    ready = prepared(cl.methods.fedavg(lr=0.1, local_steps=1), task, standardize=0.1, dtype="float64", delta=None)
    released = released_before_training.statistics(ready, Ledger.create(None, "test", {}))
    people, means = task.population, []
    for start, size in zip(people.starts.tolist(), people.sizes.tolist(), strict=True):
        own = people.inputs[start : start + size].double().clamp(-1, 1).numpy()
        means.append((own.mean(0), (own**2).mean(0)))
    center, square = (np.mean([pair[part] for pair in means], axis=0) for part in (0, 1))
    np.testing.assert_allclose(released["center"].numpy(), center, rtol=1e-6)
    np.testing.assert_allclose(released["scale"].numpy(), np.sqrt(square - center**2), rtol=1e-5)


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])
def test_the_run_stays_within_its_budget_and_says_what_it_released(method):
    run = go(method)
    assert run.epsilon <= 3.0
    assert run.epsilon > 2.9, "and nothing of it is wasted"
    assert "a noisy mean and mean square of the inputs" in run.certificate.released
    assert run.certificate.rounds_charged == 3
    assert "hospital 0" in str(run.certificate)


def test_the_noise_of_training_makes_room_for_it():
    run = go(cohort=cl.poisson(0.5), rounds=5)
    noise = run.certificate.noise_multiplier
    whole = next(line for line in run.certificate.sampling_accounted if "no amplification" in line)
    asked = float(whole.split("noise multiplier ")[1].split(",")[0])
    together = epsilon_of(PoissonGaussian(noise, 0.5), 5, 1e-3, beside=[(Gaussian(asked), 1)])
    assert together == pytest.approx(3.0, rel=2e-3)
    assert together <= 3.0 + 1e-4
    # A tenth of the budget: one Gaussian release that spends all of it has less noise by the root of ten.
    assert epsilon_of(Gaussian(asked * math.sqrt(0.1)), 1, 1e-3) == pytest.approx(3.0, rel=2e-3)


def test_cohorts_of_fixed_size_are_priced_under_replacement():
    run = go(task=shifted((5,) * 30), cohort=cl.fixed_size(10))
    assert run.certificate.adjacency.startswith("replace one client")
    assert any("exactly 30 of 30" in line for line in run.certificate.sampling_accounted)


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=12, max_size=12),
    st.floats(0.01, 100.0),
)
def test_a_sample_contributes_no_more_than_one_whatever_it_is(values, bound):
    rows = torch.tensor(values).reshape(4, 3)
    moments = Standardization.begin(plain(), torch.zeros(1, 3), torch.float32, bound).moments(rows)
    assert (moments.norm(dim=1) <= 1 + 1e-12).all()


def query(vectors, length: int = 2, noises=(0.0,)) -> Query:
    return Query("test", length, vectors, noises)


def answered(fed, made: Query, population, round: int = 0):
    return ask(fed, Ledger.create(None, "test", {}), made, {}, population, round)


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])
def test_vectors_that_are_too_long_are_cut_and_others_count_as_nothing(method):
    """The bound does not rest on whoever computes the vectors."""
    fed, _ = federation(method, task=toy_task((2, 2)))
    rows = torch.tensor([[100.0, 0.0], [math.nan, 1.0], [0.0, -50.0], [0.6, 0.0]], dtype=torch.float64)
    population = Population(rows, torch.zeros(4), torch.tensor([0, 2]), torch.tensor([2, 2]))
    found = answered(fed, query(lambda inputs, labels: inputs), population)
    np.testing.assert_allclose(found.mean.numpy(), np.array([1.6, -1.0]) / 4, rtol=1e-12)


def spread(method, noises, rounds: int = 400) -> tuple[torch.Tensor, int]:
    """The noise of many answers to the same query over nothing but zeros, and how many units there are."""
    fed, _ = federation(method, task=toy_task((3, 5)))
    population = fed.population
    made = query(lambda inputs, labels: torch.zeros(len(inputs), 50), 50, noises)
    found = torch.stack([answered(fed, made, population, round).mean for round in range(rounds)])
    return found.flatten(), 2 if method is CLIENTS else 8


def accepted(draws: torch.Tensor, deviation: float) -> bool:
    """A chi-square test of the variance, which errs once in 1e9."""
    statistic = float((draws / deviation).square().sum())
    return bool(1e-9 / 2 < stats.chi2.cdf(statistic, len(draws)) < 1 - 1e-9 / 2)


@pytest.mark.parametrize(
    ("method", "noises", "variance"),
    [(CLIENTS, (1.5,), 1.5**2), (SAMPLES, (1.5, 1.5), 2 * 1.5**2), (SAMPLES, (1.0, 3.0), 10.0)],
    ids=["clients", "samples", "samples with noise of their own"],
)
def test_the_noise_is_what_was_paid_for(method, noises, variance):
    draws, units = spread(method, noises)
    assert accepted(draws * units, math.sqrt(variance))
    assert not accepted(draws * units, 0.95 * math.sqrt(variance)), "so much less would be noticed"
    assert stats.kstest(draws.numpy() * units / math.sqrt(variance), "norm").pvalue > 1e-9


def test_shares_of_the_clients_add_up_to_the_same_noise():
    draws, units = spread(
        cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, local_steps=1, noise="distributed"), (1.5,), rounds=300
    )
    assert units == 8  # not CLIENTS itself, which has two clients
    assert accepted(draws * 2, 1.5)


def test_it_is_charged_before_it_is_computed(monkeypatch):
    ready = prepared(CLIENTS, toy_task((3, 5)), standardize=0.1, epsilon=3.0)
    ledger = Ledger.create(None, "test", {})

    def looked_at(*_):
        assert [(entry.round, entry.what) for entry in ledger.entries] == [(0, "statistics")]
        raise Killed

    monkeypatch.setattr(queries, "_sums", looked_at)
    with pytest.raises(Killed):
        released_before_training.statistics(ready, ledger)


def weights(run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])
def test_an_interrupted_run_goes_on_with_what_was_released(method, monkeypatch, tmp_path):
    whole = go(method, folder=tmp_path / "whole")
    with killed_in_round(monkeypatch, at=2):
        go(method, folder=tmp_path / "torn")
    resumed = go(method, folder=tmp_path / "torn", resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.epsilon == whole.epsilon


def killed_after_the_charge(monkeypatch, **more):
    real = queries._sums
    with monkeypatch.context() as patch:
        patch.setattr(queries, "_sums", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            go(**more)
    assert queries._sums is real


def test_a_query_that_was_paid_for_is_repeated_to_the_bit(monkeypatch, tmp_path):
    whole = go(folder=tmp_path / "whole")
    kept = RunFolder.open(tmp_path / "whole").load("cpu").released
    assert set(kept) == {"center", "scale"}, "or a run with secure randomness would be standardized anew when resumed"
    killed_after_the_charge(monkeypatch, folder=tmp_path / "torn")
    resumed = go(folder=tmp_path / "torn", resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    entries = RunFolder.open(tmp_path / "torn").ledger().entries
    assert [entry.what for entry in entries].count("statistics") == 1


def test_with_secure_randomness_it_is_paid_for_again(monkeypatch, tmp_path):
    killed_after_the_charge(monkeypatch, folder=tmp_path / "torn", secure_rng=True)
    with pytest.warns(RepeatedRounds, match="round 0"):
        run = go(folder=tmp_path / "torn", secure_rng=True, resume=True)
    entries = RunFolder.open(tmp_path / "torn").ledger().entries
    assert [entry.what for entry in entries].count("statistics") == 2
    assert run.epsilon <= 3.0


def test_a_client_without_budget_drops_out_of_it():
    """At sample level everybody pays for themselves, and whoever cannot is not asked."""
    fed, _ = federation(SAMPLES, task=toy_task((3, 5)))
    made = query(lambda inputs, labels: torch.ones(len(inputs), 1), 1, (2.0, 2.0))
    budget = {"sample of client 0": cl.Budget(0.01, 1e-5)}
    ready = prepared(SAMPLES, toy_task((3, 5)), epsilon=3.0, standardize=0.1)
    charges = ready.queries.charges((2.0, 2.0), [3, 5])
    ledger = Ledger.create(None, "test", budget)
    found = ask(fed, ledger, made, charges, fed.population, 0)
    assert {entry.unit for entry in ledger.entries} == {"sample of client 1"}
    assert found.noise == pytest.approx(2.0 / 5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"standardize": 0.0}, "0 < standardize < 1"),
        ({"standardize": 1.0}, "0 < standardize < 1"),
        ({"standardize": "some"}, "0 < standardize < 1"),
        ({"standardize_bound": -1.0}, "standardize_bound > 0"),
        ({"epsilon": None, "method": cl.methods.pfl(clip_norm=1.0, batch_size=4, noise_multiplier=2.0)}, "an epsilon"),
        ({"method": cl.methods.ddgauss(clip_norm=0.5, lr=0.1, local_steps=1)}, "Gaussian noise on real sums"),
        ({"method": cl.methods.cpsgd(batch_size=4)}, "Gaussian noise on real sums"),
        ({"method": cl.methods.pfl(clip_norm=1.0, batch_size=4, mode="as_published")}, "as published"),
    ],
)
def test_what_does_not_fit_is_one_sentence(more, message):
    with pytest.raises(CloisterError, match=message):
        go(**more)


def test_tokens_have_no_mean():
    task = cl.data.from_arrays(np.zeros((9, 4), dtype=int), np.arange(9) % 2, np.arange(9) % 3)
    model = torch.nn.Sequential(torch.nn.Embedding(2, 3), torch.nn.Flatten(), torch.nn.Linear(12, 2))
    with pytest.raises(CloisterError, match="inputs that are measurements"):
        go(task=task, model=model)


def test_the_event_of_a_query_follows_the_adjacency():
    assert queries.query_event(None, 2.0, 7) == Gaussian(2.0)
    replaced = queries.query_event(queries.Adjacency.REPLACE_ONE, 2.0, 7)
    assert replaced == FixedSizeGaussian(2.0, 7, 7)
    # Whoever is replaced moves the sum twice as far, which is worth half the noise.
    assert epsilon_of(replaced, 1, 1e-5) == pytest.approx(epsilon_of(Gaussian(1.0), 1, 1e-5), rel=1e-3)


def test_a_personalized_model_sees_standardized_inputs():
    task = shifted((60, 60, 60))
    run = go(cl.methods.fedavg(lr=0.5, local_steps=10), task, epsilon=None, delta=None, rounds=20)
    before = cl.personalize(run, task, steps=1).before
    assert before.scores == run.client_scores.scores


@pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])
def test_a_plan_counts_what_queries_cost(method):
    more = {"standardize": 0.1, "validation": "private", "validation_share": 0.2}
    task = shifted((50, 50))
    ready = prepared(method, task, epsilon=3.0, rounds=7, **more)
    plan = cl.plan(method, task, epsilon=3.0, rounds=7, delta=1e-3, **more)
    assert plan.noise.multipliers == ready.fed.multipliers
    assert plan.noise_multiplier == ready.fed.method.mechanism.noise_multiplier
    assert 2.9 < plan.epsilon <= 3.0


def test_a_plan_refuses_what_a_run_refuses():
    with pytest.raises(CloisterError, match="Gaussian noise on real sums"):
        cl.plan(
            cl.methods.ddgauss(clip_norm=0.5, lr=0.1, local_steps=1),
            clients=50,
            parameters=100,
            rounds=3,
            epsilon=3.0,
            delta=1e-3,
            standardize=0.1,
        )
