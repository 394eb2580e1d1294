"""Samples that lie with several clients: what all of these release about one stays within its budget, and is shown."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cloister as cl
from cloister.data import Task
from cloister.errors import CloisterError
from cloister.privacy.accountant import RDP_ORDERS, rdp_at
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.accounts import Spending, accounts_of
from cloister.privacy.certificate import certify
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import sample_account
from cloister.runs.folder import RunFolder
from cloister.runs.report import clients_table
from conftest import prepared, toy_task

DELTA = 1e-3


def overlapping(sizes: tuple[int, ...], copies: int) -> Task:
    return replace(toy_task(sizes), copies=copies)


def pfl(**more) -> cl.Method:
    return cl.methods.pfl(**{"clip_norm": 0.5, "batch_size": 8, **more})


def go(task: Task, method: cl.Method | None = None, **more) -> cl.Run:
    asked = {"rounds": 3, "delta": DELTA, "engine": "loop", "progress": False, **more}
    return cl.run(method or pfl(), task, **asked)


@pytest.mark.parametrize("noise", [None, 2.0])
def test_targets_that_differ_are_refused_where_clients_overlap(noise, tmp_path):
    """Whose budget would a sample have that lies with two of them? Nothing was refused, and 8.866 certified of 8."""
    with pytest.raises(CloisterError, match="one epsilon for clients that have samples in common, found 1 to 8"):
        go(overlapping((16,) * 4, 2), pfl(noise_multiplier=noise), epsilon=[1.0, 1.0, 8.0, 8.0], folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert go(overlapping((16,) * 4, 2), epsilon=[2.0] * 4, rounds=1).epsilon <= 2.0
    assert go(overlapping((16,) * 4, 1), epsilon=[1.0, 1.0, 8.0, 8.0], rounds=1).epsilon <= 8.0


@pytest.mark.parametrize("cohort", [cl.poisson(0.99), cl.fixed_size(3), cl.cyclic(2)], ids=lambda c: c.name)
def test_cohorts_in_which_histories_may_differ_have_one_order(cohort, tmp_path):
    """At such a rate the likely most turns are all rounds, and yet some client may miss one."""
    assert cl.poisson(0.99).participations(5, 4) == 5
    run = go(overlapping((16,) * 4, 2), cohort=cohort, epsilon=2.0, rounds=5, folder=tmp_path / "r")
    budgets = RunFolder.open(tmp_path / "r").ledger().budgets.values()
    assert len({budget.order for budget in budgets}) == 1
    assert all(budget.order is not None for budget in budgets)
    assert run.certificate.filter is None, "noise was fixed in advance, so that what was spent is certified"
    assert 1.0 < run.epsilon <= 2.0


def test_clients_that_are_all_alike_and_always_come_are_priced_together(tmp_path):
    run = go(overlapping((16,) * 4, 2), cohort=cl.fixed_size(4), epsilon=2.0, folder=tmp_path / "r")
    assert {budget.order for budget in RunFolder.open(tmp_path / "r").ledger().budgets.values()} == {None}
    assert 1.99 < run.epsilon <= 2.0


def test_a_query_is_paid_for_by_every_client_that_holds_a_sample(tmp_path):
    """A sample that lies with two clients is in two answers: each account pays for both."""
    run = go(overlapping((16,) * 4, 2), epsilon=2.0, center=0.1, folder=tmp_path / "r")
    asked = [entry for entry in RunFolder.open(tmp_path / "r").ledger().entries if entry.what == "mean"]
    assert [entry.count for entry in asked] == [2] * 4
    assert 1.99 < run.epsilon <= 2.0


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.sampled_from([0, 8, 16, 40]), min_size=2, max_size=5).filter(any),
    copies=st.integers(1, 4),
    targets=st.lists(st.sampled_from([0.7, 2.0, 8.0]), min_size=1, max_size=2),
    cohort=st.sampled_from([cl.full(), cl.poisson(0.95), cl.poisson(0.4), cl.fixed_size(1), cl.cyclic(2)]),
    noise=st.sampled_from([None, 1.0, 3.0]),
    seed=st.integers(0, 100),
)
def test_what_is_certified_is_within_the_budget_or_refused_beforehand(sizes, copies, targets, cohort, noise, seed):
    """Who comes is drawn, and who cannot pay drops out, over as many rounds as planned and a few more."""
    epsilon = targets[0] if len(targets) == 1 else [targets[client % 2] for client in range(len(sizes))]
    task = overlapping(tuple(sizes), copies)
    try:
        settings = {"rounds": 4, "cohort": cohort, "epsilon": epsilon, "delta": DELTA, "seed": seed}
        ready = prepared(pfl(noise_multiplier=noise), task, **settings)
    except CloisterError:
        assert noise is not None or (copies > 1 and len(set(targets)) > 1)
        return
    ledger = Ledger.create(None, "test", ready.description.budgets)
    for round in range(1, 6):
        members = cohort.sample(ready.fed.streams, round, len(sizes)).tolist()
        ledger.charge_each(ready.fed.charges(members), round=round, repeatable=True)
    certificate = certify(ready.description, ledger)
    assert certificate.epsilon <= max(targets) * (1 + 1e-6)
    spending = Spending(accounts_of(ledger), copies, adaptive=False)
    for account in accounts_of(ledger).values():
        assert account.budget is not None
        assert account.loss().certified(DELTA) <= account.budget.epsilon * (1 + 1e-6)
        assert spending.lost(account, DELTA) <= account.budget.epsilon * (1 + 1e-6)


# ---- what is shown of every client ------------------------------------------------------------------------------


def shown(folder) -> tuple[list[float], str]:
    table = clients_table(RunFolder.open(folder))
    return [float(str(cell)) for cell in table.columns[5].cells], str(table.caption or "")


def by_hand(parts: list[tuple[int, PoissonGaussian]]) -> float:
    """What some releases come to, by the best Renyi order."""
    divergences = sum(count * rdp_at(event, RDP_ORDERS) for count, event in parts)
    orders = np.array(RDP_ORDERS)
    found = divergences + np.log1p(-1 / orders) - (math.log(DELTA) + np.log(orders)) / (orders - 1)
    return float(found.min())


def test_every_client_shows_what_others_released_of_its_samples(tmp_path):
    """Two clients share samples: either's have lost what both let out, though one has a twentieth of the rate."""
    go(overlapping((8, 160), 2), pfl(noise_multiplier=2.0), rounds=2, folder=tmp_path / "r")
    small, large = PoissonGaussian(2.0, 1.0), PoissonGaussian(2.0, 1 / 20)
    (lost, other), words = shown(tmp_path / "r")
    truth = by_hand([(2, small), (40, large)])
    assert truth <= other <= lost
    assert lost == pytest.approx(truth, abs=2e-3)
    assert "up to 2 clients" in words


def test_samples_of_a_client_that_never_came_have_lost_what_others_let_out(tmp_path):
    go(overlapping((16, 16), 2), pfl(noise_multiplier=2.0), cohort=cl.cyclic(1), rounds=1, folder=tmp_path / "r")
    (came, stayed), _ = shown(tmp_path / "r")
    assert 0 < stayed <= came
    assert stayed >= epsilon_of(PoissonGaussian(2.0, 0.5), 2, DELTA)


def test_clients_without_noise_have_lost_everything(tmp_path):
    silent = pfl(noise_multiplier=0.0)
    go(overlapping((16, 16), 2), silent, cohort=cl.cyclic(1), rounds=3, delta=None, folder=tmp_path / "r")
    table = clients_table(RunFolder.open(tmp_path / "r"))
    assert [str(cell) for cell in table.columns[5].cells] == ["infinity"] * 2


def test_without_overlap_every_client_shows_its_own(tmp_path):
    go(overlapping((16, 16), 1), pfl(noise_multiplier=2.0), cohort=cl.cyclic(1), rounds=1, folder=tmp_path / "r")
    (came, stayed), words = shown(tmp_path / "r")
    assert stayed == 0 < came
    assert not words
    accounts = accounts_of(RunFolder.open(tmp_path / "r").ledger())
    assert sample_account(1) not in accounts
