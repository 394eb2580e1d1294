"""What every method keeps to whose noise is in the clients' own steps, beside what all methods keep to."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import cloister as cl
from cloister.core import State
from cloister.engine import Loop, Vectorized
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.events import NonPrivate, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import ProtectedUnit
from cloister.round import Outcome, cohort_total, run_round
from cloister.round.bind import Federation
from conftest import ENGINES, federation, flat_state, toy_task
from contract.catalogue import AUDITED_STEPS, FOLLOWING, SAMPLES, STEADY, fed_of, quick
from contract.sample_audit import AUDITS, NOISES, SIZES, alone, audited, silent, upload, with_inputs

IN_STEPS = {name: make for name, make in SAMPLES.items() if make().mechanism.place == "local"}
POOR = Budget(1e-6, 1e-9, order=2)


def one_round(
    fed: Federation, w: Tensor, engine: Any = None, ledger: Ledger | None = None, state: State | None = None
) -> Outcome:
    books = Ledger.create(None, "test", {}) if ledger is None else ledger
    return run_round(fed, books, engine or Loop(), 1, w, fed.method.init(w) if state is None else state)


def test_every_method_with_noise_in_its_steps_is_audited():
    assert {name.split()[0] for name in AUDITED_STEPS} == {name.split()[0] for name in IN_STEPS}


@pytest.mark.parametrize("audit", AUDITS.values(), ids=AUDITS)
@pytest.mark.parametrize("name", quick(AUDITED_STEPS))
def test_the_round_keeps_its_promise(name, audit):
    audit(run_round, *audited(AUDITED_STEPS[name]))


def test_a_fixed_threshold_is_the_rule_of_dp_fl_and_asks_nothing():
    made = cl.methods.adap_dp_fl(**{**FOLLOWING, "local_steps": 1}, threshold="fixed")
    assert made.local.settings == cl.methods.dp_fl(**{**STEADY, "local_steps": 1}).local.settings
    for audit in ("price", "sensitivity"):
        AUDITS[audit](run_round, *audited(made))


def test_noise_keeps_its_scale_in_float32():
    AUDITS["noise"](run_round, *audited(AUDITED_STEPS["dp_fed"], dtype=torch.float32))


def test_noise_and_batches_of_a_secure_run_come_from_the_system():
    """Fails without cause below 1e-11: the likeliest batch, of nobody, has probability 0.9^39, and
    would come 8 times.
    """
    fed, w = audited(AUDITED_STEPS["dp_fed"], secure=True)
    first, second = (one_round(silent(fed), w).w for _ in range(2))
    assert (first != second).all()
    quiet = replace(fed, multipliers=(1e-12,) * len(SIZES))
    seen = {tuple((one_round(alone(quiet, 0), w).w.abs() > 1e-6).tolist()) for _ in range(8)}
    assert len(seen) > 1


@pytest.mark.parametrize("ahead", [500, 1500])
@pytest.mark.parametrize("name", ["pfl passes", "fed_spa"])
def test_noise_of_several_blocks_keeps_its_scale(name, ahead, monkeypatch):
    """Here a block has one step, or three, so that a round has several: each has noise of its own."""
    monkeypatch.setattr("cloister.client.poisson_batches.AHEAD", ahead)
    AUDITS["noise"](run_round, *audited(AUDITED_STEPS[name]))


@pytest.mark.parametrize("name", ["pfl", "fed_spa quantile", "adap_dp_fl"])
def test_engines_agree_over_several_blocks_of_noise(name, monkeypatch):
    """Noise is drawn some steps ahead; here a block ends in the middle of a round."""
    monkeypatch.setattr("cloister.client.poisson_batches.AHEAD", 170)
    results = []
    for engine in ENGINES:
        fed, w = fed_of(IN_STEPS[name]())
        state, ledger = fed.method.init(w), Ledger.create(None, "test", {})
        for number in (1, 2):
            w, state, *_ = run_round(fed, ledger, engine, number, w, state)
        results.append((w, state))
    for w, state in results[1:]:
        torch.testing.assert_close(w, results[0][0], rtol=1e-9, atol=1e-12)
        kept = flat_state(state)
        torch.testing.assert_close(kept, flat_state(results[0][1]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", [Loop(), Vectorized(chunk=2)], ids=lambda e: e.name)
@pytest.mark.parametrize("name", AUDITED_STEPS)
def test_a_broken_sample_counts_as_none_and_its_client_sends_its_noise(name, engine):
    """What is not finite would tell of itself; and without its noise, a message would tell that something was."""
    fed, w = audited(AUDITED_STEPS[name])
    broken, gone = fed.population.inputs.clone(), fed.population.inputs.clone()
    for row, value in ((0, math.inf), (50, math.nan), (83, math.nan), (84, math.nan), (86, -math.inf)):
        broken[row] = value
        gone[row] = 0
    found, expected = (one_round(with_inputs(fed, inputs), w, engine) for inputs in (broken, gone))
    assert found.nonfinite_updates == 0
    assert torch.isfinite(found.w).all()
    torch.testing.assert_close(found.w, expected.w, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", IN_STEPS)
def test_a_client_without_data_sends_nothing_and_pays_nothing(name):
    fed, w = fed_of(IN_STEPS[name](), task=toy_task(sizes=(4, 0, 3)))
    for engine in (Loop(), Vectorized(chunk=3)):
        ledger = Ledger.create(None, "test", {})
        one_round(fed, w, engine, ledger)
        assert {entry.unit for entry in ledger.entries} == {"sample of client 0", "sample of client 2"}
        assert not cohort_total(fed, engine, 1, w, torch.tensor([1]))[0].any()


@pytest.mark.parametrize("name", ["pfl", "adap_dp_fl decay"])
def test_a_round_without_members_releases_nothing(name):
    nobody = replace(cl.poisson(0.5), sample=lambda streams, round, population: torch.tensor([], dtype=torch.int64))
    fed, w = fed_of(IN_STEPS[name](), nobody)
    ledger = Ledger.create(None, "test", {})
    outcome = one_round(fed, w, ledger=ledger)
    assert torch.equal(outcome.w, w)
    assert not ledger.entries
    assert (outcome.cohort_size, outcome.dropped) == (0, 0)


def test_what_a_client_sends_depends_on_nobody_else():
    """Neither batches nor noise nor what is kept: alone, among others, and beside clients that were refused."""
    for name in ("pfl", "fed_spa", "adap_dp_fl"):
        fed, w = audited(AUDITED_STEPS[name])
        apart = [upload(run_round, fed, w, client, 1, fed.method.init(w))[0] for client in range(len(SIZES))]
        together = replace(fed, method=replace(fed.method, server=cl.server.sgd()))
        for engine in (Loop(), Vectorized(chunk=2)):
            outcome = one_round(together, w, engine)
            torch.testing.assert_close(outcome.w - w, sum(apart) / len(SIZES), rtol=1e-9, atol=1e-12)
            ledger = Ledger.create(None, "test", {"sample of client 1": POOR})
            outcome = one_round(together, w, engine, ledger)
            assert (outcome.cohort_size, outcome.dropped) == (len(SIZES) - 1, 1)
            rest = sum(apart) - apart[1]
            torch.testing.assert_close(outcome.w - w, rest / (len(SIZES) - 1), rtol=1e-9, atol=1e-12)


def test_a_client_that_sits_out_keeps_what_it_had():
    fed, w = audited(AUDITED_STEPS["adap_dp_fl as_written"])
    state = one_round(fed, w).state
    after = run_round(alone(fed, 1), Ledger.create(None, "test", {}), Loop(), 2, w, state).state
    for name in ("mean", "square", "steps", "threshold"):
        assert torch.equal(after.clients[name][[0, 2, 3]], state.clients[name][[0, 2, 3]])
        assert not torch.equal(after.clients[name][1], state.clients[name][1])


def test_a_round_that_nobody_there_can_pay_ends_the_run_and_others_do_not():
    fed, w = audited(AUDITED_STEPS["dp_fed"])
    poor = {f"sample of client {client}": POOR for client in range(len(SIZES))}
    broke = Ledger.create(None, "test", poor)
    with pytest.raises(BudgetExceededError, match="sample of client"):
        one_round(fed, w, ledger=broke)
    assert not broke.entries
    rich = Ledger.create(None, "test", dict.fromkeys(list(poor)[:2], POOR))
    outcome = one_round(alone(fed, 0), w, ledger=rich)  # client 2 could go on, but it is not its turn
    assert torch.equal(outcome.w, w)
    assert (outcome.cohort_size, outcome.dropped) == (0, 1)
    assert not rich.entries


def test_samples_that_lie_with_several_clients_are_paid_for_by_each():
    fed, w = audited(AUDITED_STEPS["pfl"])
    counts = {}
    for copies in (1, 3):
        ledger = Ledger.create(None, "test", {})
        one_round(replace(fed, copies=copies), w, ledger=ledger)
        counts[copies] = [entry.count for entry in ledger.entries]
    assert sorted(counts[1]) == [1, 2, 10, 10]
    assert sorted(counts[3]) == [3, 6, 30, 30]


def test_noise_that_follows_the_losses_is_drawn_and_priced_alike():
    fed, w = fed_of(IN_STEPS["adap_dp_fl decay"](), task=toy_task(sizes=(7, 3)))
    state = fed.method.init(w)
    state.server["noise"] = torch.tensor(0.5, dtype=torch.float64)
    ledger = Ledger.create(None, "test", {})
    found = one_round(fed, w, ledger=ledger, state=state)
    priced = [entry.event for entry in ledger.entries]
    assert [event.sampling_rate for event in priced] == [0.5, 1.0]
    assert [event.noise_multiplier for event in priced] == pytest.approx([0.65 / math.sqrt(1 + 1 / 25)] * 2)
    less = one_round(replace(fed, multipliers=(0.65, 0.65)), w)
    torch.testing.assert_close(found.w, less.w, rtol=1e-12, atol=0)


def test_without_noise_there_is_no_price_and_no_privacy():
    fed, w = federation(cl.methods.pfl(clip_norm=0.1, batch_size=4, noise_multiplier=0.0))
    ledger = Ledger.create(None, "test", {})
    one_round(fed, w, ledger=ledger)
    assert {entry.event for entry in ledger.entries} == {NonPrivate()}
    assert math.isinf(ledger.most(1e-3))


def test_every_client_is_priced_at_its_own_noise():
    fed, w = audited(AUDITED_STEPS["dp_fed"])
    ledger = Ledger.create(None, "test", {})
    one_round(fed, w, ledger=ledger)
    priced = {entry.unit: entry.event for entry in ledger.entries}
    rates = (1 / 10, 1 / 10, 1 / 2, 1.0)
    assert priced == {
        f"sample of client {c}": PoissonGaussian(noise, sampling_rate)
        for c, (noise, sampling_rate) in enumerate(zip(NOISES, rates, strict=True))
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda method: replace(method, mechanism=replace(method.mechanism, unit=ProtectedUnit.CLIENT)),
        lambda method: replace(method, local=cl.client.sgd(lr=0.1, local_steps=1)),
        lambda method: replace(method, local=replace(method.local, private=None)),
        lambda method: replace(method, local=replace(method.local, phases=method.local.phases * 2)),
        lambda method: replace(
            method,
            local=replace(
                method.local,
                phases=tuple(
                    replace(p, batching=replace(p.batching, batch_sampling=None)) for p in method.local.phases
                ),
            ),
        ),
    ],
    ids=["of clients", "without noise", "not private", "two phases", "shuffled batches"],
)
def test_noise_in_steps_is_for_private_steps_over_secret_batches(spoil):
    with pytest.raises(CloisterError, match="private by themselves, over secret batches"):
        federation(spoil(cl.methods.dp_fed(local_steps=1, noise_multiplier=1.0)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: cl.methods.pfl(local_epoch="round"),
        lambda: cl.methods.pfl(batch_sampling="shuffled"),
        lambda: cl.methods.pfl(mode="as_published", batch_sampling="fixed_size"),
        lambda: cl.methods.pfl(clip_norm=0.0),
        lambda: cl.methods.fed_spa(local_steps=1, clipping="tensor"),
        lambda: cl.methods.fed_spa(local_steps=1, bound="mean"),
        lambda: cl.methods.fed_spa(local_steps=1, bound="median", mode="as_published"),
        lambda: cl.methods.dp_fed(local_steps=1, bound="quantile"),
        lambda: cl.methods.fed_spa(local_steps=1, bound="quantile", clipping="coordinate"),
        lambda: cl.methods.fed_spa(local_steps=1, keep_fraction=0.0),
        lambda: cl.methods.fed_spa(local_steps=1, mode="as_published", batch_sampling="poisson"),
        lambda: cl.methods.fed_spa(),
        lambda: cl.methods.dp_fed(local_steps=1, local_epochs=1),
        lambda: cl.methods.adap_dp_fl(threshold="mean"),
        lambda: cl.methods.adap_dp_fl(noise_decay=0.0),
        lambda: cl.methods.adap_dp_fl(noise_decay=1.5),
        lambda: cl.methods.adap_dp_fl(clip_norm=1.0, floor=0.0),
        lambda: cl.methods.adap_dp_fl(clip_norm=1.0, floor=2.0),
        lambda: cl.methods.adap_dp_fl(clip_norm=1.0, query_noise=0.0),
        lambda: cl.methods.adap_dp_fl(clip_norm=1.0, threshold="quantile", quantile=1.0),
        lambda: cl.methods.adap_dp_fl(clip_norm=1.0, alpha_clip=-1.0),
        lambda: cl.methods.adap_dp_fl(threshold="fixed"),
        *(
            lambda key=key, value=value: cl.methods.adap_dp_fl(clip_norm=1.0, threshold="fixed", **{key: value})
            for key, value in {
                "norm_bound": 2.0,
                "alpha_clip": 0.5,
                "floor": 0.1,
                "quantile": 0.6,
                "clip_lr": 0.1,
                "query_noise": 1.0,
            }.items()
        ),
        lambda: cl.methods.dp_fl(clip_norm=0.0),
        lambda: cl.methods.dp_fl(local_steps=0),
        lambda: cl.methods.dp_fl(poisson_rate="fast"),
        lambda: cl.methods.dp_fl(poisson_rate="exact", batch_sampling="fixed_size"),
        lambda: cl.methods.fed_spa(local_steps=1, mode="as_published", poisson_rate="exact"),
        lambda: cl.methods.pfl(local_epochs=[]),
        lambda: cl.methods.pfl(local_epochs=[1, 0]),
        lambda: cl.methods.pfl(local_epochs=[1, 2.0]),
        lambda: cl.methods.pfl(local_epochs="12"),
        lambda: federation(cl.methods.adap_dp_fl(clip_norm=1.0, noise_multiplier=1.0)),
        lambda: federation(cl.methods.adap_dp_fl(noise_decay=1.0, noise_multiplier=1.0)),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(make):
    with pytest.raises(CloisterError, match=r"^Expected .* found .*: .*\.$"):
        make()
