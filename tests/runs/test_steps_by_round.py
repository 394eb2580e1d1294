"""Runs whose rounds differ in their numbers of local epochs, and runs whose batches have the rate that is printed:
what is drawn, what is charged, what is planned and what is certified are the same steps at the same rate."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import cloister as cl
from cloister.core import Batching, Method
from cloister.errors import CloisterError
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.round import run_round
from cloister.runs.folder import RunFolder
from conftest import ENGINES, killed_in_round, prepared
from contract.sample_audit import ALARM, CERTAIN, NOISES, SIZES, audited, silent, upload

EPOCHS, DELTA = [1, 1, 2, 4], 1e-3
BATCH, STEPS = 8, (2, 5)  # of a pass
CLIENTS = (16, 40)


def people(sizes: tuple[int, ...] = CLIENTS) -> cl.data.Task:
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = random.integers(0, 3, len(owner))
    inputs = random.normal(size=(len(owner), 4)) + labels[:, None]
    return cl.data.from_arrays(inputs, labels, owner, test=(inputs[:9], labels[:9]), classes=3)


ONE = people((40,))


def pfl(**more) -> Method:
    usual = {"clip_norm": 0.5, "batch_size": BATCH, "local_epochs": EPOCHS, "noise_multiplier": 1.5}
    return cl.methods.pfl(**{**usual, **more})


def go(method: Method, task: cl.data.Task | None = None, **more) -> cl.Run:
    usual = {"rounds": 4, "delta": DELTA, "engine": "loop", "progress": False}
    return cl.run(method, ONE if task is None else task, **{**usual, **more})


def paid(folder: Path, client: int) -> list[tuple[int, int]]:
    """Rounds, and how many steps each of them was charged."""
    entries = RunFolder.open(folder).ledger().entries
    return [(entry.round, entry.count) for entry in entries if entry.unit == f"sample of client {client}"]


@cache
def pld(rate: float, noise: float, steps: int, delta: float = DELTA) -> float:
    """Epsilon by dp-accounting itself."""
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    return accountant.get_epsilon(delta)


# ---- epochs by round --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", ["pass", "batch"])
def test_every_round_is_charged_for_its_own_steps(epoch, tmp_path):
    run = go(pfl(local_epoch=epoch), people(), folder=tmp_path / "r")
    for client, pieces in enumerate(STEPS):
        steps = [number * (pieces if epoch == "pass" else 1) for number in EPOCHS]
        assert paid(tmp_path / "r", client) == list(enumerate(steps, 1))
    costs = [pld(1 / pieces, 1.5, 8 * (pieces if epoch == "pass" else 1)) for pieces in STEPS]
    assert run.epsilon == pytest.approx(max(costs), rel=1e-3)
    wrong = [pld(1 / pieces, 1.5, 4 * (pieces if epoch == "pass" else 1)) for pieces in STEPS]
    assert run.epsilon > 1.2 * max(wrong), "that of rounds which are all as the first"


def test_noise_is_calibrated_to_the_sum_of_all_epochs():
    """Which is all that it depends on: with two epochs in every round it is the same."""
    ready = [
        prepared(pfl(noise_multiplier=None, local_epochs=epochs), people(), rounds=4, epsilon=4.0)
        for epochs in (EPOCHS, 2)
    ]
    first = ready[0].fed.multipliers
    assert all(one.fed.multipliers == first for one in ready)
    for pieces, noise in zip(STEPS, first, strict=True):
        assert 3.98 < pld(1 / pieces, noise, 8 * pieces) < 4.005
    assert len({one.description.configuration_hash for one in ready}) == 2


def test_a_plan_is_that_of_its_run():
    method = pfl(noise_multiplier=None)
    planned = cl.plan(method, ONE, rounds=4, epsilon=4.0, delta=DELTA)
    run = go(method, epsilon=4.0)
    assert [row.noise_multiplier for row in planned.rows] == run.certificate.noise_multipliers
    assert planned.epsilon == run.epsilon
    assert [(row.steps_per_round, row.steps) for row in planned.rows] == [(20, 40)]
    by_round = [point.epsilons[0] for point in planned.curve_of("sample of client 0", 4)]
    assert by_round == pytest.approx([line["epsilon"] for line in run.history], rel=1e-2), "round by round"
    assert by_round[3] - by_round[2] > by_round[1] - by_round[0]
    assert " 20 " in str(planned)


def test_clients_that_are_drawn_are_calibrated_to_the_longest_rounds():
    """Nobody knows in advance which rounds a client joins, so it is the most that any as many of them have."""
    cohort = cl.fixed_size(1)
    likely = cohort.participations(40, 2)
    epochs = [1] * 30 + [3] * 10
    assert 10 < likely < 40
    task = people((40, 40))
    ready = prepared(pfl(local_epochs=epochs, noise_multiplier=None), task, rounds=40, cohort=cohort, epsilon=4.0)
    most = 10 * 3 + (likely - 10)
    assert 3.98 < pld(1 / 5, ready.fed.multipliers[0], most * 5) < 4.005


def test_a_client_that_cannot_pay_for_a_long_round_drops_out_of_it(tmp_path):
    """A budget for the first three rounds, and not for the four epochs of the last."""
    enough = pld(1 / 5, 1.5, 4 * 5) * 1.01
    run = go(pfl(), people((40, 40)), epsilon=[enough, 50.0], folder=tmp_path / "r")
    assert [line["dropped"] for line in run.history] == [0, 0, 0, 1]
    assert paid(tmp_path / "r", 0) == [(1, 5), (2, 5), (3, 10)]
    assert paid(tmp_path / "r", 1) == [(1, 5), (2, 5), (3, 10), (4, 20)]


def test_a_killed_run_goes_on_with_the_steps_of_its_round(tmp_path, monkeypatch):
    whole = go(pfl(), folder=tmp_path / "whole")
    more = {"folder": tmp_path / "r", "checkpoint_every": 2}
    with killed_in_round(monkeypatch, 4):
        go(pfl(), **more)
    resumed = go(pfl(), resume=True, **more)
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert (tmp_path / "r" / "ledger.jsonl").read_bytes() == (tmp_path / "whole" / "ledger.jsonl").read_bytes()
    with pytest.raises(CloisterError, match="found that method"):
        go(pfl(local_epochs=[1, 1, 4, 2]), resume=True, **more)


class StopAfter(cl.Callback):
    def __init__(self, round: int) -> None:
        self.round = round

    def on_round(self, record):
        return cl.StopTraining("enough") if record.round == self.round else None


def test_a_run_that_ends_early_is_certified_for_the_epochs_that_were_planned():
    """As many as all rounds have: not as many as if those that are left were like those that were run."""
    whole, ended = go(pfl()), go(pfl(), callbacks=[StopAfter(2)])
    assert len(ended.history) == 2
    assert ended.epsilon == pytest.approx(whole.epsilon, rel=1e-9)


@pytest.mark.parametrize("rounds", [3, 5])
def test_a_list_of_another_length_than_the_run_is_refused_before_anything_is_written(rounds, tmp_path):
    match = rf"^Expected local_epochs to have a number for each of {rounds} rounds, found \[1, 1, 2, 4\]: .*\.$"
    with pytest.raises(CloisterError, match=match):
        go(pfl(), rounds=rounds, folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    with pytest.raises(CloisterError, match=match):
        cl.plan(pfl(), people(), rounds=rounds, delta=DELTA)
    with pytest.raises(CloisterError, match="rounds = 4"):
        cl.plan(pfl(), people(), epsilon=4.0, delta=DELTA)


def test_a_round_that_no_number_is_given_for_is_refused_before_it_is_charged():
    ready = prepared(pfl(), people(), rounds=4)
    ledger = Ledger.create(None, "test", {})
    state = ready.fed.method.init(ready.w)
    for engine in ENGINES:
        for round in (0, 5):
            with pytest.raises(CloisterError, match="a round from 1 to 4"):
                run_round(ready.fed, ledger, engine, round, ready.w, state)
    with pytest.raises(CloisterError, match="a round from 1 to 4"):
        ready.fed.charges([0])
    assert not ledger.entries
    with pytest.raises(CloisterError, match="batches that are drawn"):
        Batching(4, local_epochs=1, by_round=(1, 2))


def test_the_command_line_takes_a_list(tmp_path, command):
    words = ["run", "method=pfl", "clients=2", "rounds=2", "batch_size=800", "local_epochs=[1, 2]", "epsilon=8"]
    found = command(*words, "delta=1e-5", "engine=loop", "--folder", tmp_path / "r", "--quiet", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    counts = [count for _, count in paid(tmp_path / "r", 0)]
    assert counts[1] == 2 * counts[0] > 0


def audit_rounds(play, fed, w) -> None:
    """The noise of every round is that of as many steps as were charged for it."""
    dumb = silent(fed)
    for round in (1, 2, 3, 4):
        ledger = Ledger.create(None, "audit", {})
        state = fed.method.init(w)
        only = replace(cl.full(), sample=lambda streams, round, population: torch.tensor([CERTAIN]))
        alone = replace(dumb, cohort=only, method=replace(fed.method, server=cl.server.sgd()))
        play(alone, ledger, ENGINES[0], round, w, state)
        (entry,) = ledger.entries
        message, _ = upload(play, dumb, w, CERTAIN, round, state)
        in_clips = message / fed.method.local.settings["optimizer"]["lr"] * SIZES[CERTAIN] / 0.5
        ratio = float((in_clips / NOISES[CERTAIN]).square().sum())
        assert ALARM < stats.chi2.cdf(ratio / entry.count, len(w)) < 1 - ALARM, f"round {round} has its steps' noise"


@pytest.mark.parametrize("bug", [None, "every round costs what the first does", "every round costs the mean"])
def test_rounds_that_are_priced_alike_are_caught(bug):
    made = cl.methods.pfl(0.5, 0.1, 4, EPOCHS, momentum=0.0, noise_multiplier=1.0)
    fed, w = audited(made)

    def play(fed, ledger, engine, round, w, state):
        if bug is None:
            return run_round(fed, ledger, engine, round, w, state)
        real = fed.charges

        def charges(members, noise_scale=1.0, round=None):
            (unit, charge), *_ = real(members, noise_scale, 1).items()
            return {unit: replace(charge, count=2 if bug.endswith("mean") else charge.count)}

        object.__setattr__(fed, "charges", charges)
        return run_round(fed, ledger, engine, round, w, state)

    if bug is None:
        audit_rounds(play, fed, w)
    else:
        with pytest.raises(AssertionError, match="has its steps' noise"):
            audit_rounds(play, fed, w)


@given(
    st.integers(1, 300),
    st.integers(1, 80),
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from(["local_steps", "local_epochs"]),
    st.data(),
)
def test_a_run_is_as_long_as_its_rounds(samples, batch, numbers, name, data):
    batching = Batching(batch, batch_sampling="poisson", by_round=tuple(numbers), **{name: 1})
    rounds = range(1, len(numbers) + 1)
    steps = [batching.steps_for(samples, round) for round in rounds]
    one = math.ceil(samples / batch) if name == "local_epochs" else 1
    assert steps == [number * one for number in numbers]
    assert batching.most_steps(samples, len(numbers), len(numbers)) == sum(steps)
    some = data.draw(st.sets(st.sampled_from(rounds), min_size=1))
    assert batching.most_steps(samples, len(numbers), len(some)) >= sum(steps[round - 1] for round in some)
    with pytest.raises(CloisterError, match="at most"):
        batching.most_steps(samples, len(numbers) + 1, 1)


# ---- the rate that is printed -----------------------------------------------------------------------------------

METHODS = {
    "pfl": lambda **more: cl.methods.pfl(0.5, local_epochs=2, **more),
    "dp_fed": lambda **more: cl.methods.dp_fed(0.5, local_epochs=2, **more),
    "fed_spa": lambda **more: cl.methods.fed_spa(0.5, local_epochs=2, **more),
    "adap_dp_fl": lambda **more: cl.methods.adap_dp_fl(0.5, "fixed", local_steps=4, noise_decay=1.0, **more),
    "dp_fl": lambda **more: cl.methods.dp_fl(0.5, local_steps=4, **more),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_exact_rate_is_charged_and_planned(name):
    """n = 126 and L = 78, as in Adap DP-FL: 78/126 = 0.62 where a pass has 1/2; and a client below a batch."""
    task, steps = people((126, 40)), 4 if name in ("adap_dp_fl", "dp_fl") else 2
    for rate, q in (("exact", 78 / 126), ("pass", 1 / 2)):
        method = METHODS[name](batch_size=78, noise_multiplier=2.0, poisson_rate=rate)
        large, small = prepared(method, task).fed.charges([0, 1]).values()
        assert (large, small) == (Charge(PoissonGaussian(2.0, q), 4), Charge(PoissonGaussian(2.0, 1.0), steps))
        rows = cl.plan(method, task, rounds=3, delta=DELTA).rows
        assert [row.sampling_rate for row in rows] == pytest.approx([q, 1.0], rel=1e-12)
        assert [row.steps for row in rows] == [12, 3 * steps]
        assert rows[0].epsilon == pytest.approx(pld(q, 2.0, 12), rel=1e-3)
    assert pld(78 / 126, 2.0, 12) > 1.2 * pld(1 / 2, 2.0, 12)


def test_the_exact_rate_is_certified():
    run = go(METHODS["dp_fl"](batch_size=78, noise_multiplier=2.0, poisson_rate="exact"), people((126, 130)), rounds=3)
    assert run.epsilon == pytest.approx(pld(78 / 126, 2.0, 12), rel=1e-3), "of the smaller client, which loses more"
    assert "with probability 78/(samples of the client), at most 1" in " ".join(str(run.certificate).split())


def test_noise_is_calibrated_to_the_exact_rate():
    ready = prepared(cl.methods.dp_fl(0.5, batch_size=78, poisson_rate="exact"), people((126,)), epsilon=2.0, rounds=5)
    (noise,) = ready.fed.multipliers
    assert pld(78 / 126, noise, 5) == pytest.approx(2.0, rel=2e-3)
    assert pld(1 / 2, noise, 5) < 1.8


def test_the_claim_of_a_paper_is_at_the_rate_that_is_drawn():
    """Theorem 1 of Adap DP-FL by hand, at q = L / |D|: integer orders, and no query, as the threshold is fixed."""
    made = cl.methods.adap_dp_fl(
        0.5, "fixed", batch_size=78, noise_decay=1.0, noise_multiplier=2.0, poisson_rate="exact", mode="as_published"
    )
    run, q = go(made, people((126,)), rounds=5), 78 / 126

    def at(a: int) -> float:
        terms = (
            math.comb(a, i) * (1 - q) ** (a - i) * q**i * math.exp((i * i - i) / (2 * 2.0**2)) for i in range(a + 1)
        )
        return 5 * math.log(sum(terms)) / (a - 1) + math.log(1 / DELTA) / (a - 1)

    assert run.certificate.claimed["epsilon"] == pytest.approx(min(map(at, range(2, 65))), rel=1e-9)
    assert run.epsilon <= run.certificate.claimed["epsilon"], "nothing is left out, and PLD is tighter"


def test_a_run_that_says_nothing_of_rates_or_rounds_is_described_as_before():
    local = go(cl.methods.pfl(0.5, batch_size=BATCH, noise_multiplier=1.5), rounds=1).certificate
    described = prepared(cl.methods.pfl(0.5, batch_size=BATCH, noise_multiplier=1.5), people()).description
    assert list(described.method.local)[:6] == [
        *("name", "batch_size", "local_steps", "local_epochs", "batch_sampling", "memory")
    ]
    assert described.method.local["local_epochs"] == 1
    assert "1/(steps of a pass in batches of 8)" in " ".join(str(local).split())


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_rates_are_probabilities_and_divisors_are_what_is_expected(samples, batch):
    exact = Batching(batch, local_epochs=1, batch_sampling="poisson", poisson_rate="exact")
    of_a_pass = replace(exact, poisson_rate="pass")
    for batching in (exact, of_a_pass):
        rate = batching.sampling_rate(samples)
        assert 0 < rate <= 1
        assert batching.expected(samples) == samples * rate
        assert batching.event(1.0, samples) == PoissonGaussian(1.0, rate)
    assert exact.sampling_rate(samples) >= of_a_pass.sampling_rate(samples) * (1 - 1e-12)
    if samples % batch == 0:
        assert exact.sampling_rate(samples) == pytest.approx(of_a_pass.sampling_rate(samples), rel=1e-12)
