"""Runs that protect samples: an account for every client, what it is charged, and what is certified of all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant, compute_epsilon

import cloister as cl
from cloister.core import Layout, Method
from cloister.errors import CloisterError
from cloister.privacy.accountant import RDP_ORDERS
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.budgets import Budget
from cloister.privacy.description import ClaimDescription
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.published_claims import adap_dp_fl
from cloister.privacy.renyi_filter import epsilon_at, room_at
from cloister.round.bind_method import bind_method
from cloister.runs.folder import RunFolder
from conftest import flat_state, killed_in_round

SIZES = (16, 40, 9, 40)
BATCH, DELTA = 8, 1e-3
STEPS = (2, 5, 2, 5)  # of a pass


def people(sizes: tuple[int, ...] = SIZES, copies: int = 1, registered: int | None = None) -> cl.data.Task:
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    labels = random.integers(0, 3, len(owner))
    inputs = random.normal(size=(len(owner), 4)) + labels[:, None]
    pool = inputs[:20] + 0.1, labels[:20]
    task = cl.data.from_arrays(
        inputs, labels, owner, test=(inputs[:9], labels[:9]), classes=3, public_samples=pool, registered=registered
    )
    return replace(task, copies=copies)


def go(method: Method, task: cl.data.Task | None = None, **more) -> cl.Run:
    settings = {"rounds": 3, "delta": DELTA, "engine": "loop", "progress": False, **more}
    return cl.run(method, people() if task is None else task, **settings)


def pfl(**more) -> Method:
    return cl.methods.pfl(**{"clip_norm": 0.5, "batch_size": BATCH, "noise_multiplier": 1.5, **more})


def books(folder: Path) -> dict[str, list]:
    entries: dict[str, list] = {}
    for entry in RunFolder.open(folder).ledger().entries:
        entries.setdefault(entry.unit, []).append(entry)
    return entries


def name(client: int) -> str:
    return f"sample of client {client}"


# ---- what every client is charged -------------------------------------------------------------------------------


def test_clients_of_different_sizes_have_rates_steps_and_noise_of_their_own(tmp_path):
    run = go(pfl(noise_multiplier=None), epsilon=4.0, folder=tmp_path / "r")
    noises = run.certificate.noise_multipliers
    assert noises[1] == noises[3]
    assert noises[0] == noises[2] > noises[1]
    paid = books(tmp_path / "r")
    for client, (steps, noise) in enumerate(zip(STEPS, noises, strict=True)):
        event = PoissonGaussian(noise, 1 / steps)
        assert [(e.event, e.count, e.round) for e in paid[name(client)]] == [(event, steps, r) for r in (1, 2, 3)]
        assert 3.99 < epsilon_of(event, 3 * steps, DELTA) <= 4.0
    assert 3.99 < run.epsilon <= 4.0
    assert run.certificate.unit == "sample"
    assert "add or remove one sample of one client" in run.certificate.adjacency


def test_clients_have_targets_of_their_own(tmp_path):
    targets = [1.0, 8.0, 2.0, 4.0]
    run = go(pfl(noise_multiplier=None), people((8, 8, 8, 8)), epsilon=targets, folder=tmp_path / "r")
    noises = run.certificate.noise_multipliers
    assert sorted(range(4), key=noises.__getitem__) == [1, 3, 2, 0]
    ledger = RunFolder.open(tmp_path / "r").ledger()
    for client, target in enumerate(targets):
        assert 0.99 * target < ledger.epsilon(name(client), DELTA) <= target
    assert run.certificate.budget["epsilon"] == 8.0
    assert run.certificate.least_budget == 1.0
    assert "epsilon 1 to 8 at delta" in str(run.certificate)
    assert run.epsilon == pytest.approx(ledger.epsilon(name(1), DELTA), rel=1e-6)
    with pytest.raises(CloisterError, match="an epsilon for each of 4 clients"):
        go(pfl(noise_multiplier=None), epsilon=[1.0, 2.0])


def test_a_client_that_cannot_pay_drops_out_and_the_others_go_on():
    """At the same noise, a target of 2 pays for some rounds only."""
    run = go(pfl(), people((8, 8, 8)), epsilon=[2.0, 4.0, 3.0], rounds=6)
    costs = [epsilon_of(PoissonGaussian(1.5, 1.0), rounds, DELTA) for rounds in range(7)]
    lasts = [max(r for r in range(7) if costs[r] <= target) for target in (2.0, 4.0, 3.0)]
    assert lasts == sorted(set(lasts), key=lasts.index)
    assert lasts[0] < lasts[2] < lasts[1] < 6
    cohorts = [sum(last >= r for last in lasts) for r in range(1, lasts[1] + 1)]
    assert [line["cohort"] for line in run.history] == cohorts
    assert [line["dropped"] for line in run.history] == [3 - size for size in cohorts]
    assert run.stopped is not None
    assert run.epsilon == pytest.approx(costs[lasts[1]], rel=1e-6)


@pytest.mark.parametrize("cohort", [cl.cyclic(2), cl.fixed_size(2), cl.poisson(0.5)], ids=lambda c: c.name)
def test_who_takes_part_pays_and_the_costliest_client_is_certified(cohort, tmp_path):
    rounds = 7
    run = go(pfl(), rounds=rounds, cohort=cohort, folder=tmp_path / "r", seed=3)
    lines, paid = run.history, books(tmp_path / "r")
    took_part = [len(paid.get(name(client), [])) for client in range(4)]
    assert sum(took_part) == sum(line["cohort"] for line in lines)
    if cohort.name == "cyclic":
        assert took_part == [4, 4, 3, 3]
    if cohort.name == "fixed_size":
        assert {line["cohort"] for line in lines} == {2}
    costs = [
        epsilon_of(PoissonGaussian(1.5, 1 / steps), steps * participations, DELTA) if participations else 0.0
        for steps, participations in zip(STEPS, took_part, strict=True)
    ]
    assert run.epsilon == pytest.approx(max(costs), rel=1e-6)
    worst = costs.index(max(costs))
    assert run.certificate.releases_charged == STEPS[worst] * took_part[worst]
    assert [line["epsilon"] for line in lines] == sorted(line["epsilon"] for line in lines)


def test_batches_of_a_fixed_size_are_priced_under_replacement(tmp_path):
    made = cl.methods.fed_spa(0.5, local_steps=2, batch_size=BATCH, mode="as_published", noise_multiplier=4.0)
    run = go(made, people((30, 30)), folder=tmp_path / "r")
    (event,) = {entry.event for entry in books(tmp_path / "r")[name(0)]}
    assert event == FixedSizeGaussian(4.0, BATCH, 30)
    assert run.epsilon == pytest.approx(epsilon_of(event, 6, DELTA), rel=1e-6)
    assert "replace one sample" in run.certificate.adjacency
    assert "by Theorem 1 of Fed-SPA" in run.certificate.claimed["words"]


# ---- samples that lie with several clients ----------------------------------------------------------------------


def test_overlapping_clients_of_one_history_multiply_what_a_sample_loses():
    run = go(pfl(), people((16, 16), copies=3))
    assert run.epsilon == pytest.approx(epsilon_of(PoissonGaussian(1.5, 0.5), 3 * 2 * 3, DELTA), rel=1e-6)
    assert "a sample lies with up to 3" in " ".join(str(run.certificate).split())


def test_overlapping_clients_of_different_histories_are_bounded_at_every_order():
    """By hand: at each Renyi order, a sample loses no more than if it lay with the costliest client each time."""
    run = go(pfl(), people(copies=2))
    largest = np.zeros(len(RDP_ORDERS))
    for steps in STEPS:
        accountant = RdpAccountant(list(RDP_ORDERS))
        accountant.compose(dp.PoissonSampledDpEvent(1 / steps, dp.GaussianDpEvent(1.5)), 3 * steps * 2)
        largest = np.maximum(largest, accountant._rdp)
    assert run.epsilon == pytest.approx(compute_epsilon(RDP_ORDERS, largest, DELTA)[0], rel=1e-9)


# ---- noise that is chosen on the way ----------------------------------------------------------------------------


def adaptive(**more) -> Method:
    return cl.methods.adap_dp_fl(
        **{"clip_norm": 0.5, "batch_size": 10 * BATCH, "lr": 0.02, "noise_decay": 0.8, "noise_multiplier": 3.0, **more}
    )


MANY = people(tuple(10 * size for size in SIZES))


@pytest.fixture(autouse=True, scope="module")
def _noise_of_no_machine():
    """Noise depends on the machine; here it follows from the seed alone, so that what happens does everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.engine.noise_key", lambda run, *_: run)
        yield


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Noise falls with the losses, again and again, until nobody can pay."""
    folder = tmp_path_factory.mktemp("runs") / "followed"
    return go(adaptive(), MANY, epsilon=[3.0, 4.0, 5.0, 6.0], rounds=14, folder=folder), folder


def test_a_filter_stops_every_client_before_its_sum_exceeds_its_room(followed):
    run, folder = followed
    ledger, paid = RunFolder.open(folder).ledger(), books(folder)
    noises = sorted({entry.event.noise_multiplier for entries in paid.values() for entry in entries})
    assert len(noises) > 2
    for client, target in enumerate((3.0, 4.0, 5.0, 6.0)):
        order, q = ledger.budgets[name(client)].order, 1 / STEPS[client]
        accountant = RdpAccountant([order])
        for entry in paid[name(client)]:
            assert entry.event.sampling_rate == q
            step = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(entry.event.noise_multiplier))
            accountant.compose(step, entry.count)
        spent = accountant.get_epsilon(DELTA)
        assert ledger.epsilon(name(client), DELTA) == pytest.approx(spent, rel=1e-9)
        assert spent <= target
        rounds = [entry.round for entry in paid[name(client)]]
        assert rounds == list(range(1, len(rounds) + 1)), "who has dropped out does not come back"
    assert run.stopped is not None
    assert run.certificate.filter["order"] in {budget.order for budget in ledger.budgets.values()}


def test_what_a_filter_promises_is_certified_and_not_what_was_spent(followed):
    run, _ = followed
    assert run.epsilon == 6.0
    assert run.certificate.filter["spent"] <= 6.0
    assert "Renyi filter of order" in str(run.certificate)
    with pytest.raises(CloisterError, match="its filter needs to know when to stop"):
        go(adaptive(), epsilon=None)
    with pytest.raises(CloisterError, match="public"):
        go(adaptive(), replace(people(), public_samples=None), epsilon=3.0)


def killed(monkeypatch, at: int, method: Method, task: cl.data.Task | None = None, **more) -> None:
    with killed_in_round(monkeypatch, at):
        go(method, task, checkpoint_every=3, **more)


def test_a_killed_run_goes_on_with_what_its_clients_kept(followed, tmp_path, monkeypatch):
    """Adam's state, thresholds, losses, the noise, and who has dropped out: the same bits, and the same ledger."""
    whole, folder = followed
    again = {"epsilon": [3.0, 4.0, 5.0, 6.0], "rounds": 14, "folder": tmp_path / "r"}
    killed(monkeypatch, len(whole.history), adaptive(), MANY, **again)
    resumed = go(adaptive(), MANY, resume=True, **again)
    for mine, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, other)
    assert (tmp_path / "r" / "ledger.jsonl").read_bytes() == (folder / "ledger.jsonl").read_bytes()
    states = [flat_state(RunFolder.open(path).load("cpu").state) for path in (folder, tmp_path / "r")]
    assert {"clients/mean", "clients/threshold", "server/noise", "server/losses"} <= set(states[0])
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_with_secure_randomness_a_round_that_is_played_again_is_paid_again(tmp_path, monkeypatch):
    more = {"rounds": 6, "folder": tmp_path / "r", "secure_rng": True}
    killed(monkeypatch, 5, pfl(), **more)
    run = go(pfl(), resume=True, **more)
    for client, steps in enumerate(STEPS):
        entries = books(tmp_path / "r")[name(client)]
        assert [entry.round for entry in entries] == [1, 2, 3, 4, 4, 5, 6]
        assert sum(entry.count for entry in entries) == 7 * steps
    costs = [epsilon_of(PoissonGaussian(1.5, 1 / steps), 7 * steps, DELTA) for steps in STEPS]
    assert run.epsilon == pytest.approx(max(costs), rel=1e-6)


def test_whoever_had_paid_when_the_lines_of_a_round_were_torn_does_not_pay_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    budgets = {name(client): Budget(3.0, DELTA, order) for client, order in enumerate((None, None, 8))}
    charges = {name(client): Charge(PoissonGaussian(1.5 + client, 0.1), 10) for client in range(3)}
    ledger = Ledger.create(path, "test", budgets)
    assert ledger.charge_each(charges, round=1, repeatable=True) == {}
    ledger.close()
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    path.write_bytes(b"\n".join(lines[:2]) + b"\n" + lines[2][:50])
    again = Ledger.open(path)
    assert [again.has_paid(name(client), 1) for client in range(3)] == [True, False, False]
    assert again.charge_each(charges, round=1, repeatable=True) == {}
    assert [again.epsilon(u, DELTA) for u in charges] == pytest.approx([ledger.epsilon(u, DELTA) for u in charges])
    again.close()
    assert path.read_bytes() == whole


# ---- what people see --------------------------------------------------------------------------------------------


def test_what_each_client_has_lost_is_shown(followed, tmp_path, command):
    folder = followed[1]
    found = command("show", folder, "--clients")
    assert found.returncode == 0
    head, *rows = [
        line.split() for line in found.stdout.splitlines() if line and line.split()[0] in ("client", *"0123")
    ]
    assert " ".join(head) == "client samples noise rounds steps spent at 0.001 budget"
    ledger, paid = RunFolder.open(folder).ledger(), books(folder)
    for client, (number, samples, noise, rounds, steps, spent, budget) in enumerate(rows):
        assert (int(number), int(samples), float(noise)) == (client, 10 * SIZES[client], 3.0)
        assert int(rounds) == int(steps) == len(paid[name(client)])
        assert ledger.epsilon(name(client), DELTA) <= float(spent) <= float(budget) == 3.0 + client
    assert len(rows) == 4
    go(cl.methods.dp_fedavg(clip_norm=0.5, local_steps=1, noise_multiplier=2.0), rounds=1, folder=tmp_path / "clients")
    refused = command("show", tmp_path / "clients", "--clients")
    assert refused.returncode == 2
    assert "protects single samples" in refused.stderr


# ---- what reviews found ------------------------------------------------------------------------------------------


def test_noise_is_for_one_turn_at_least():
    assert cl.poisson(0.001).participations(1, 10) == 1


def test_the_claim_is_about_one_client():
    """PFL executes what it claims, so that of the largest client the claim is what it costs."""
    run = go(pfl(noise_multiplier=None, mode="as_published"), people((80, 4)), epsilon=3.0)
    assert run.certificate.claimed["epsilon"] == pytest.approx(3.0, rel=0.01)


def test_the_claim_of_fed_spa_is_about_its_batches():
    made = cl.methods.fed_spa(0.5, local_steps=1, batch_size=8, mode="as_published", noise_multiplier=4.0)
    run = go(made, people((15, 15)))
    c = 7 * (8 / 15) ** 2 * 3 / 4.0**2
    assert run.certificate.claimed["epsilon"] == pytest.approx(c + 2 * math.sqrt(c * math.log(1e3)), rel=1e-9)


def test_the_claim_follows_the_noise_of_every_round(tmp_path):
    """Of the largest client, whose rounds are counted, and not those of whoever lost most."""
    made = adaptive(mode="as_published", noise_decay=0.5)
    run = go(made, MANY, epsilon=[9.0, 90.0, 9.0, 90.0], rounds=9, folder=tmp_path / "r")
    entries = books(tmp_path / "r")[name(1)]
    noises = [entry.event.noise_multiplier * math.sqrt(2) for entry in entries]  # the printed query has as much noise
    assert noises[0] == pytest.approx(3.0)
    assert min(noises) < 1.6
    claim = ClaimDescription("adap_dp_fl", noise_multiplier=3.0, sampling_rate=1 / 5)
    expected, _ = adap_dp_fl(claim, [(noise, 1) for noise in noises], DELTA)
    assert run.certificate.claimed["epsilon"] == pytest.approx(expected, rel=1e-9)


def test_what_filters_of_overlapping_clients_let_through_adds_up_at_one_order(tmp_path):
    """A sample that lies with two clients loses what both let through; at the smaller order both are bounded."""
    task = people((80, 2000), copies=2)
    run = go(
        adaptive(noise_multiplier=None), task, epsilon=3.0, rounds=2, folder=tmp_path / "r", allow_large_delta=True
    )
    budgets = RunFolder.open(tmp_path / "r").ledger().budgets.values()
    most = max(room_at(budget.order, 3.0, DELTA) for budget in budgets)
    assert run.epsilon >= epsilon_at(min(budget.order for budget in budgets), most, DELTA) - 1e-9


def test_overlapping_clients_of_whom_one_never_came_are_certified():
    run = go(pfl(), people((16, 16), copies=2), cohort=cl.fixed_size(1), epsilon=50.0, rounds=1)
    assert run.epsilon == pytest.approx(epsilon_of(PoissonGaussian(1.5, 0.5), 4, DELTA), rel=1e-6)


def test_a_client_without_samples_asks_for_no_noise():
    """Where noise is the same for all, everybody would have as much as a client of one sample needs."""
    noises = [
        go(pfl(noise_multiplier=None), people((40, 40), registered=clients), epsilon=3.0).certificate.noise_multiplier
        for clients in (2, 3)
    ]
    assert noises[0] == noises[1]


def test_a_threshold_can_start_from_gradients_on_noise_however_small():
    method = cl.methods.adap_dp_fl(noise_decay=1.0, noise_multiplier=1.0)
    layout = Layout.of(torch.nn.Linear(3, 1))
    bind_method(method, cl.full(), layout, 4, norms=lambda: torch.full((5,), 1e-3))


@pytest.mark.parametrize("rounded", [True, False])
def test_a_run_whose_seed_gives_other_noise_today_is_not_resumed(rounded, tmp_path, monkeypatch):
    """What a round that was paid for is computed with again must be the noise of then: rounded noise is drawn otherwise
    since number 6, floats are not."""
    settings = {"folder": tmp_path / "run", "rounded_noise": rounded, "checkpoint_every": 1}
    with monkeypatch.context() as then, killed_in_round(then, 3):
        then.setattr("cloister.runs.description.DRAWS_ON_A_GRID", 5)
        go(pfl(), **settings)
    if rounded:
        with pytest.raises(CloisterError, match="draws"):
            go(pfl(), **settings, resume=True)
    else:
        assert len(go(pfl(), **settings, resume=True).history) == 3
