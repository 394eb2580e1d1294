"""Whatever a run was like, what is published of it verifies: every method, and every way in which a run may end."""

from __future__ import annotations

from dataclasses import replace

import pytest

import cloister as cl
from cloister.publication.certificate import page_of
from cloister.publication.publish import publish
from cloister.publication.verification import verify_folder
from conftest import toy_task
from contract.catalogue import METHODS

USUAL = {"rounds": 3, "delta": 1e-2, "progress": False, "engine": "loop"}
FEDAVG = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=1, noise_multiplier=2.0)
PFL = cl.methods.pfl(clip_norm=0.5, batch_size=4)


def public(task):
    people = toy_task(seed=7).population
    return replace(task, public_samples=(people.inputs[:9], people.labels[:9]))


def expect_verified(folder) -> dict[str, str]:
    """Published and verified; what people are told of it is there, too."""
    publish(folder, folder.with_name("public"))
    found = verify_folder(folder.with_name("public"))
    assert found.good, found.wrong
    assert len(found.lines()) <= 40
    return dict(found.proven)


def bounded(folder) -> float:
    """The largest epsilon of an account on the page, which is at most the one that is printed large."""
    page = page_of(folder)
    spent = [float(one.epsilon) for one in page.spending]
    assert max(spent) <= float(page.epsilon) + 1e-9
    assert all(guess.before <= guess.after <= 1 for guess in page.guesses)
    return float(page.epsilon)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # a median that is drowned by its noise is as good as any here
@pytest.mark.parametrize("name", METHODS)
def test_of_every_method(name, tmp_path):
    method = METHODS[name]()
    needs_target = {"epsilon": 8.0} if method.noise_schedule is not None or "median" in name else {}
    cohort = {"cohort": cl.cyclic(3)} if name.startswith("dp_ftrl") else {}
    cl.run(method, public(toy_task()), **USUAL, **needs_target, **cohort, folder=tmp_path / "run")
    expect_verified(tmp_path / "run")
    page_of(tmp_path / "run")


def test_that_ended_by_what_it_had_released(tmp_path):
    """Certified for all planned rounds: so are its accounts and an attacker's chances."""

    class Stops(cl.Callback):
        def on_round(self, record):
            raise cl.StopTraining("enough")

    run = cl.run(FEDAVG, toy_task(), **USUAL, callbacks=[Stops()], folder=tmp_path / "run")
    assert run.stopped
    expect_verified(tmp_path / "run")
    whole = cl.run(FEDAVG, toy_task(), **USUAL, folder=tmp_path / "whole")
    assert bounded(tmp_path / "run") == pytest.approx(whole.epsilon, abs=1e-3)
    page, other = page_of(tmp_path / "run"), page_of(tmp_path / "whole")
    assert page.spending[0].epsilon == other.spending[0].epsilon
    assert [one.after for one in page.guesses] == pytest.approx([one.after for one in other.guesses])


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        {"record": ["norms", "clipping"]},
        {"epsilon": 6.0, "rounds": 20, "cohort": cl.fixed_size(3), "allow_large_delta": True},
        {"cohort": cl.fixed_size(3)},
    ],
)
def test_with_measurements_with_a_budget_and_with_cohorts_of_fixed_size(more, tmp_path):
    cl.run(FEDAVG, toy_task(), **{**USUAL, **more}, folder=tmp_path / "run")
    assert "price" in expect_verified(tmp_path / "run")
    bounded(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(16,) * 4, (12, 16, 20, 24)])
def test_of_clients_that_overlap(sizes, tmp_path):
    cl.run(PFL, replace(toy_task(sizes), copies=2), **USUAL, epsilon=2.0, folder=tmp_path / "run")
    expect_verified(tmp_path / "run")
    bounded(tmp_path / "run")


@pytest.mark.slow
def test_whose_noise_was_chosen_on_the_way(tmp_path):
    cl.run(METHODS["adap_dp_fl decay"](), public(toy_task()), **USUAL, epsilon=4.0, folder=tmp_path / "run")
    assert "Renyi filter" in expect_verified(tmp_path / "run")["price"]
    assert bounded(tmp_path / "run") == 4.0
