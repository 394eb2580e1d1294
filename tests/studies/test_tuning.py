"""Tuning on public and simulated data: what is searched, on what candidates are judged, and what is said of it."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import cloister as cl
from cloister.data.task import Task
from cloister.errors import CloisterError
from cloister.runs.config_file import load
from cloister.runs.folder import RunFolder
from cloister.runs.signatures import introspected
from cloister.studies.tuning.held_out import held_out_task, public_task
from cloister.studies.tuning.space import Choice, Range, space_of, split_words

KEYS = {
    "method": "dp_fedavg",
    "cohort": "full",
    "rounds": 2,
    "local_steps": 2,
    "noise_multiplier": 1.0,
    "delta": 1e-3,
    "engine": "vectorized",
}
SPACE = {"clip_norm": (0.1, 3.0), "lr": [0.3, 1.0]}
EXACT = {name: value for name, value in KEYS.items() if name not in ("noise_multiplier", "delta")} | {
    "method": "fedavg"
}
EXACT_SPACE = {"lr": (0.01, 1.0), "local_steps": [1, 2]}
"""The same without noise, whose price takes longer to compute than the training."""


def digits_of(clients: int = 30, each: int = 20, public: int = 0) -> Task:
    data = load_digits()
    x, y = (data.images / 16).astype(np.float32)[:, None], data.target
    mine = np.arange(clients * each)
    aside = (x[1000 : 1000 + public], y[1000 : 1000 + public]) if public else 0
    return cl.data.from_arrays(
        x[mine], y[mine], mine // each, test=(x[-200:], y[-200:]), classes=10, public_samples=aside
    )


TASK = digits_of(public=300)


def go(task: Task = TASK, **more):
    return cl.tune(EXACT, EXACT_SPACE, **{"on": "simulated", "trials": 3, "task": task, "final": False, **more})


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("0.01..1", Range(0.01, 1.0)),
        ("1..3", Range(1.0, 3.0)),
        ("1e-3..1e0", Range(1e-3, 1.0)),
        ("0.1,0.3", Choice((0.1, 0.3))),
        ((0.5, 2), Range(0.5, 2.0)),
        ([1, 2], Choice((1.0, 2.0))),
    ],
)
def test_ranges_and_lists(text, dimension):
    assert space_of(introspected(), KEYS, {"clip_norm": text}) == {"clip_norm": dimension}


def test_values_lie_within_their_range_and_go_by_logarithms_where_it_is_wide():
    wide, narrow, whole = Range(0.01, 1.0), Range(1.0, 2.0), Range(2, 5, whole=True)
    assert wide.log
    assert not narrow.log
    assert wide.at(0.5) == pytest.approx(0.1)
    assert narrow.at(0.5) == 1.5
    draws = [whole.at(u) for u in np.linspace(0, 1, 4000, endpoint=False)]
    assert np.bincount(draws).tolist() == [0, 0, 1000, 1000, 1000, 1000]
    assert [Choice(("a", "b")).at(u) for u in (0.0, 0.49, 0.5, 1 - 2**-53)] == ["a", "a", "b", "b"]
    assert wide.at(0.0) == 0.01
    assert wide.at(1 - 2**-53) <= 1.0


@pytest.mark.parametrize(
    ("searched", "words"),
    [
        ({}, "something to search"),
        ({"epsilon": "1..2"}, "fix it"),
        ({"noise_multiplier": "1,2"}, "fix epsilon"),
        ({"seed": "1,2"}, "lucky seed"),
        ({"clip_norm": "1..0.5"}, "smaller to a larger"),
        ({"clip_norm": "1..x"}, "two numbers"),
        ({"clip_norm": "0.1...3"}, "two numbers"),  # 3, says whoever writes it; .3, says Python
        ({"rho": "0.1..1"}, "found 'rho': method dp_fedsam"),
        ({"clip_norm": "1,1"}, "different values"),
        ({"clipnorm": "1,2"}, "clip_norm"),
        ({"local_steps": "0.5..2"}, "whole numbers"),
        ({"engine": "1..2"}, "a list of values"),
        ({"clients": "3,4"}, "belongs to the data"),
        ({"data": "digits,mnist"}, "belongs to the data"),
    ],
)
def test_what_cannot_be_searched_is_refused(searched, words):
    with pytest.raises(CloisterError, match=words):
        space_of(introspected(), KEYS, searched)


def test_noise_is_searched_under_a_budget_that_is_fixed():
    """Where it begins and falls, or buys steps; on private data all trials have the noise that the price is of."""
    keys = {**KEYS, "method": "adap_dp_fl", "threshold": "fixed", "clip_norm": 1.0, "epsilon": 2.0}
    keys.pop("noise_multiplier")
    space = space_of(introspected(), keys, {"noise_multiplier": "1.5,2", "noise_decay": "0.9,0.99"})
    assert space["noise_multiplier"] == Choice((1.5, 2.0))
    with pytest.raises(CloisterError, match="leave it out"):
        cl.tune({**KEYS, "epsilon": 2.0}, {"noise_multiplier": [1.0, 2.0]}, on="private", trials=2, task=digits_of(10))


def test_whoever_does_not_say_on_which_data_is_told_the_three_choices():
    with pytest.raises(CloisterError, match=r"choose public .* simulated .* or private .*"):
        go(on=None)
    with pytest.raises(CloisterError, match="public, simulated or private"):
        go(on="test")


def test_a_deployment_is_not_tuned_for_free():
    with pytest.raises(CloisterError, match="secure_rng"):
        cl.tune({**KEYS, "secure_rng": True}, SPACE, on="simulated", trials=2, task=digits_of(10))


def test_held_out_clients_are_not_trained_on_and_no_test_sample_is_there():
    marked = replace(TASK, test_inputs=torch.full_like(TASK.test_inputs, math.nan))
    for unit in ("client", "sample"):
        task = held_out_task(marked, unit, 0.2, seed=1)
        people = task.population
        trained = [people.inputs[a : a + n] for a, n in zip(people.starts.tolist(), people.sizes.tolist(), strict=True)]
        seen = {row.numpy().tobytes() for part in trained for row in part}
        scored = {row.numpy().tobytes() for row in task.test_inputs}
        everything = {row.numpy().tobytes() for row in TASK.population.inputs}
        assert not seen & scored
        assert seen | scored == everything
        assert len(scored) == 120
    assert held_out_task(TASK, "client", 0.2, seed=1).clients == 24


def test_the_choice_is_the_same_whatever_the_test_labels_are():
    usual = go()
    wrong = (TASK.test_labels + 1) % 10
    other = go(replace(TASK, test_inputs=torch.full_like(TASK.test_inputs, math.nan), test_labels=wrong))
    assert [one.score for one in usual.trials] == [one.score for one in other.trials]
    assert usual.settings == other.settings
    assert len({one.score for one in usual.trials}) > 1
    # The same test sees a choice that is made by test samples.
    spied = go(replace(TASK, population=replace(TASK.population, labels=(TASK.population.labels + 1) % 10)))
    assert [one.score for one in spied.trials] != [one.score for one in usual.trials]


def test_public_tuning_looks_at_public_samples_alone():
    usual = go(on="public", trials=2)
    people = TASK.population
    other = go(replace(TASK, population=replace(people, labels=(people.labels + 1) % 10)), on="public", trials=2)
    assert [one.score for one in usual.trials] == [one.score for one in other.trials]
    assert "tuned" not in usual.values
    assert "costs nothing" in usual.note
    federation = public_task(TASK, 0)
    assert federation.clients == 15
    assert int(federation.population.sizes.sum()) == 300
    with pytest.raises(CloisterError, match="public samples to tune on"):
        go(digits_of(), on="public")


def test_an_interrupted_search_goes_on_and_finds_the_same(tmp_path):
    whole = go(folder=tmp_path / "whole", final=True)
    heard = []

    def interrupt(trial):
        heard.append(trial.number)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(folder=tmp_path / "parts", told=interrupt)
    parts = go(folder=tmp_path / "parts", told=lambda trial: heard.append(trial.number), final=True)
    assert heard == [0, 1, 2]
    assert [(one.settings, one.score) for one in parts.trials] == [(one.settings, one.score) for one in whole.trials]
    assert parts.final.scores == whole.final.scores
    files = {"best.toml", "final", "journal.log", "trials.csv", "trials.md", "tuning.json", "tuning.png"}
    assert {path.name for path in (tmp_path / "parts").iterdir()} == files
    assert load(tmp_path / "parts" / "best.toml") == parts.values
    with pytest.raises(CloisterError, match="found 'another, by its keys'"):
        cl.tune({**EXACT, "rounds": 3}, EXACT_SPACE, on="simulated", task=TASK, folder=tmp_path / "parts")


def test_candidates_that_can_be_counted_are_tried_once_each():
    """The same settings with the same seed have the same score: a second trial would tell nothing."""
    heard = []
    space = {"lr": [0.1, 1.0], "local_steps": (1, 2)}
    found = cl.tune(EXACT, space, on="simulated", trials=30, task=TASK, final=False, told=heard.append)
    tried = [tuple(one.settings.values()) for one in found.trials]
    assert sorted(tried) == [(lr, steps) for lr in (0.1, 1.0) for steps in (1, 2)]
    assert [(one.number, one.of) for one in heard] == [(number, 4) for number in range(4)]


def test_two_searches_in_one_folder_do_not_mix(tmp_path):
    def second(trial):
        go(folder=tmp_path / "one")

    with pytest.raises(CloisterError, match="to be the only one at work in"):
        go(folder=tmp_path / "one", told=second)


def test_a_range_that_was_taken_for_a_value_is_named():
    with pytest.raises(CloisterError, match=r"something to search, found lr=0.1-1: write a range"):
        space_of(introspected(), {**KEYS, "lr": "0.1-1"}, {})


def test_a_candidate_that_fails_is_passed_over_and_all_that_fail_are_an_error():
    keys, more = {**EXACT, "lr": 0.3}, {"on": "simulated", "trials": 4, "task": TASK, "final": False}
    found = cl.tune(keys, {"batch_size": [0, 8]}, **more)
    failed = [one for one in found.trials if one.settings["batch_size"] == 0]
    assert len(failed) == 1
    assert all(one.score is None and "batch_size" in one.error for one in failed)
    assert found.settings == {"batch_size": 8}
    with pytest.raises(CloisterError, match="batch_size"):
        cl.tune(keys, {"batch_size": [0, -1]}, **more)


def test_the_command(tmp_path, command):
    keys = "method=dp_fedavg data=digits clients=20 cohort=full rounds=1 local_steps=1 noise_multiplier=1 delta=1e-3"
    search = f"clip_norm=0.5..2 lr=0.1,1 --on simulated --trials 2 --folder {tmp_path / 'a'}"
    out = command(*f"tune {keys} {search}".split()).stdout
    for words in ("best: clip_norm=", "was not charged", "tested once"):
        assert words in out
    gaps = [gap for gap in RunFolder.open(tmp_path / "a" / "final").certificate().not_covered if "the tuning" in gap]
    assert len(gaps) == 1
    assert "the tuning itself was not charged: this epsilon does not cover the choice of clip_norm, lr" in gaps[0]
    again = command(*f"run {tmp_path / 'a' / 'best.toml'} --folder {tmp_path / 'b'}".split())
    assert again.returncode == 0
    final, alone = (tomllib.loads((tmp_path / one / "config.toml").read_text()) for one in ("a/final", "b"))
    assert final == alone, "defaults are there as well, or reports would take them for other settings"
    slip = command(*f"tune {keys} clip_norm=0.5..2".split())
    assert slip.returncode == 2
    assert "on which data to tune" in slip.stderr
    assert split_words(["metrics=f1,auroc"], introspected()) == ({}, ["metrics=f1,auroc"])


@pytest.mark.parametrize("metrics", ["f1,auroc", "[f1, auroc]", ["f1", "auroc"], "f1"])
def test_metrics_are_named_as_for_a_run(metrics):
    """Only one name was taken on the command line of a tuning, and a list of a run's file."""
    assert (
        cl.tune({**EXACT, "metrics": metrics}, EXACT_SPACE, on="simulated", trials=1, task=TASK, final=False).metric
        == "f1"
    )
