"""Agents drawn at random (paper 002: |W| = r n of them in every round): who comes pays, and nobody else does."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld

import cloister as cl
from cloister.engine import Loop
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import sample_account
from cloister.round import cohort_total, run_round
from cloister.runs.folder import RunFolder
from conftest import federation, toy_task

AGENTS, SAMPLES, BATCH, TAU, Z, DELTA = 10, 20, 5, 3, 2.0, 1e-3
TASK = toy_task(sizes=(SAMPLES,) * AGENTS)
LOCAL = {"lr": 0.3, "batch_size": BATCH, "local_steps": TAU, "noise_multiplier": Z}
METHODS = {"fed_spa": cl.methods.fed_spa, "dp_fed": cl.methods.dp_fed}
COHORTS = [cl.fixed_size(3), cl.poisson(0.3)]
every_method = pytest.mark.parametrize("name", METHODS)
long_for_others = pytest.mark.parametrize("name", ["fed_spa", pytest.param("dp_fed", marks=pytest.mark.slow)])
every_cohort = pytest.mark.parametrize("cohort", COHORTS, ids=lambda cohort: cohort.name)


def sampled_epsilon(steps: int) -> float:
    """DP-SGD of so many Poisson batches, by dp-accounting."""
    if not steps:
        return 0.0
    one = pld.from_gaussian_mechanism(Z, sampling_prob=BATCH / SAMPLES, value_discretization_interval=1e-3)
    return one.self_compose(steps).get_epsilon_for_delta(DELTA)


@every_cohort
@long_for_others
def test_an_agent_pays_for_the_rounds_that_it_is_in_and_the_costliest_one_is_certified(name, cohort, tmp_path):
    rounds = 12
    found = cl.run(
        METHODS[name](**LOCAL),
        TASK,
        rounds=rounds,
        cohort=cohort,
        delta=DELTA,
        engine="loop",
        folder=tmp_path / "r",
        progress=False,
        seed=1,
    )
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    paid = Counter(entry.unit for entry in entries)
    by_round = Counter(entry.round for entry in entries)
    assert [by_round[line["round"]] for line in found.history] == [line["cohort"] for line in found.history]
    if cohort.name == "fixed_size":
        assert set(by_round.values()) == {3}
    assert len({(entry.round, entry.unit) for entry in entries}) == len(entries), "once in a round"
    # Coming or not is seen by the server: the batch's rate counts, and the cohort's does not.
    assert {(entry.event, entry.count) for entry in entries} == {(PoissonGaussian(Z, BATCH / SAMPLES), TAU)}
    assert len(set(paid.values())) > 1, "agents differ in how often they come"
    most = max(paid.values())
    assert found.epsilon == pytest.approx(sampled_epsilon(TAU * most), rel=5e-3)
    assert most > 0.3 * rounds, "r T rounds, the mean, would be too few"
    assert found.epsilon > 1.02 * sampled_epsilon(math.floor(TAU * 0.3 * rounds))
    least = min(range(AGENTS), key=lambda client: paid[sample_account(client)])
    ledger = RunFolder.open(tmp_path / "r").ledger()
    assert ledger.epsilon(sample_account(least), DELTA) == pytest.approx(
        sampled_epsilon(TAU * paid[sample_account(least)]), rel=5e-3, abs=1e-9
    )


@every_cohort
@every_method
def test_the_server_divides_by_how_many_came_and_adds_up_them_alone(name, cohort):
    """Against the paper's formulas: the mean over W, and for Fed-SPA u, v and the step of Algorithm 1, by hand."""
    fed, w = federation(METHODS[name](**LOCAL, server=None), cohort, TASK)
    ledger, state, expected = Ledger.create(None, "test", {}), fed.method.init(w), w.clone()
    u, v, found = torch.zeros_like(w), torch.full_like(w, 1e-6), w
    seen = set()
    for round in range(1, 7):
        members = fed.cohort.sample(fed.streams, round, AGENTS)
        seen.add(tuple(members.tolist()))
        messages = [cohort_total(fed, Loop(), round, expected, member[None])[0] for member in members]
        mean = torch.stack(messages).mean(0) if messages else torch.zeros_like(w)
        if name == "fed_spa":
            u = 0.9 * u + 0.1 * mean
            v = 0.99 * v + 0.01 * u**2
            expected = expected + 0.01 * u / (v.sqrt() + 1e-3)
        else:
            expected = expected + mean
        outcome = run_round(fed, ledger, Loop(), round, found, state)
        found, state = outcome.w, outcome.state
        assert outcome.cohort_size == len(members)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert len(seen) > 3, "other agents in other rounds"


@pytest.mark.slow
@every_cohort
def test_a_target_is_calibrated_for_as_many_rounds_as_an_agent_is_likely_to_be_in(cohort):
    """And kept by the ledger, whoever comes more often: such an agent stays away once its budget is spent."""
    settings = {name: value for name, value in LOCAL.items() if name != "noise_multiplier"}
    found = cl.run(
        cl.methods.fed_spa(**settings),
        TASK,
        rounds=12,
        cohort=cohort,
        epsilon=2.0,
        delta=DELTA,
        engine="loop",
        progress=False,
        seed=2,
    )
    assert found.epsilon <= 2.0
    everybody = cl.plan(cl.methods.fed_spa(**settings), TASK, rounds=12, cohort=cl.full(), epsilon=2.0, delta=DELTA)
    assert found.certificate.noise_multiplier < everybody.noise_multiplier


def test_as_published_agents_are_priced_for_fixed_batches_beside_the_claim(tmp_path):
    found = cl.run(
        cl.methods.fed_spa(**{**LOCAL, "noise_multiplier": 4.0}, mode="as_published"),
        TASK,
        rounds=6,
        cohort=cl.fixed_size(3),
        delta=DELTA,
        engine="loop",
        folder=tmp_path / "r",
        progress=False,
    )
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    assert {entry.event for entry in entries} == {FixedSizeGaussian(4.0, BATCH, SAMPLES)}
    most = max(Counter(entry.unit for entry in entries).values())
    # Theorem 1 for the agent that came most often: s2 = z^2 / 2, and the order at which the derivative is zero.
    slope = 3.5 * (BATCH / SAMPLES) ** 2 * TAU * most / (4.0**2 / 2)
    claim = slope + 2 * math.sqrt(slope * math.log(1 / DELTA))
    assert found.certificate.claimed is not None
    assert found.certificate.claimed["epsilon"] == pytest.approx(claim, rel=1e-6)
