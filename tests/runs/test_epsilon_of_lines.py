"""The epsilon of every line of a run, and so of its log, callbacks and trackers, is no less than what was spent."""

from __future__ import annotations

import pytest

import cloister as cl
from cloister.runs.folder import RunFolder
from conftest import toy_task

STEPS = {"lr": 0.1, "batch_size": 3, "local_steps": 2}
METHODS = {
    "clients": lambda: cl.methods.dp_fedavg(clip_norm=1.0, **STEPS),
    "samples": lambda: cl.methods.dp_fed(clip_norm=1.0, **STEPS),
}


class Lines(cl.Callback):
    """What callbacks are told is released."""

    def __init__(self, stop_after: int | None = None):
        self.epsilons, self.stop_after = [], stop_after

    def on_round(self, record):
        self.epsilons.append(record.released["epsilon"])
        if record.round == self.stop_after:
            raise cl.StopTraining("enough")


def run(method, task, rounds=4, **more):
    return cl.run(method, task, rounds=rounds, delta=1e-4, engine="loop", progress=False, **more)


@pytest.mark.parametrize("name", METHODS)
def test_a_line_has_paid_for_its_own_validation(name):
    seen = Lines()
    found = run(
        METHODS[name](),
        toy_task(sizes=(12,) * 6),
        epsilon=4.0,
        validation="private",
        validation_share=0.8,
        evaluate_every=2,
        callbacks=[seen],
    )
    spent = [line["epsilon"] for line in found.history]
    assert spent == pytest.approx(seen.epsilons)
    assert spent[-1] == pytest.approx(found.epsilon, rel=1e-6)
    assert "validation" in found.history[1]
    assert spent[1] > 2 * spent[0], "the query costs four times as much as all rounds"
    assert found.at_epsilon(found.epsilon * (1 + 1e-6)).round == 4


def overlapping(rounds, **more):
    task = cl.data.digits(clients=10, partition=cl.data.overlapping(10))
    method = cl.methods.pfl(noise_multiplier=4.0, batch_size=32)
    return run(method, task, rounds, cohort=cl.poisson(0.5), **more)


def test_lines_of_clients_that_overlap_are_those_of_the_certificate():
    """Nobody has a budget, and histories differ: no single account says what a sample has lost."""
    found = overlapping(4)
    assert found.certificate.epsilon == pytest.approx(found.history[-1]["epsilon"], rel=1e-6)


def test_a_score_of_a_run_that_was_stopped_costs_what_might_have_been():
    """Where it was stopped depends on what was released, so it costs as much as the rounds that it could have had."""
    found = run(METHODS["clients"](), toy_task(), 8, epsilon=4.0, evaluate_every=1, callbacks=[Lines(stop_after=3)])
    assert len(found.history) == 3
    spent = [line["epsilon"] for line in found.history]
    assert found.epsilon > 1.2 * spent[-1]
    assert found.at_epsilon(100.0).epsilon == found.epsilon
    asked = (spent[-1] + found.epsilon) / 2
    assert found.at_epsilon(asked).epsilon == asked
    assert found.at_epsilon(spent[1]).epsilon == spent[1], "a budget that would have ended it before"


@pytest.mark.parametrize("written", ["late", "for callbacks", "at a checkpoint"])
def test_a_run_that_its_budget_stops_is_tested_where_it_stopped(written, tmp_path):
    """And not only where it was planned to end; also where its line was written before that was known."""
    task = cl.data.digits(clients=4, public_samples=100)
    method = cl.methods.adap_dp_fl(noise_decay=0.9, lr=0.02, threshold="fixed", clip_norm=1.0)
    more = {"late": {}, "for callbacks": {"callbacks": [cl.Callback()]}, "at a checkpoint": {"checkpoint_every": 1}}
    found = run(method, task, 12, epsilon=4.0, folder=tmp_path / "run", **more[written])
    assert RunFolder.open(tmp_path / "run").metrics()[-1]["accuracy"] == found.accuracy
    assert found.stopped is not None
    assert len(found.history) < 12
    assert found.history[-1]["accuracy"] == found.accuracy
    assert found.best_on_test.value == found.accuracy
