"""Scores client by client: who has which, how far apart they are, and that they are kept as not private."""

from __future__ import annotations

import json
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

import cloister as cl
from cloister.errors import Corrupted
from cloister.runs import client_files
from cloister.runs.client_scores import ClientScores
from conftest import killed_in_round, toy_task

NAMES = ["Avon", "Brent", "Clyde", "Dee"]
FEDAVG = cl.methods.fedavg(lr=0.1, local_steps=2)
ONCE = {"rounds": 1, "engine": "loop"}


def task_of(labels: str = "classes", samples: int = 200, **more):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(samples, 5)).astype(np.float32)
    found = {"classes": random.integers(0, 2, samples), "numbers": inputs[:, 0] + random.normal(size=samples)}
    owners = random.choice(NAMES, samples, p=[0.5, 0.3, 0.15, 0.05])
    loss = "cross_entropy" if labels == "classes" else "mse"
    return cl.data.from_arrays(inputs, found[labels], owners, loss=loss, test=0.4, registered=[*NAMES, "Esk"], **more)


def rows_of(task, client: str) -> np.ndarray:
    rows, owners = task.local_test
    return rows[owners == task.client_names.index(client)].numpy()


@pytest.mark.parametrize(
    ("labels", "metric", "reference"),
    [
        ("classes", "accuracy", lambda t, o: sk.accuracy_score(t, o.argmax(1))),
        ("classes", "auroc", lambda t, o: sk.roc_auc_score(t, o.softmax(1)[:, 1])),
        ("classes", "f1", lambda t, o: sk.f1_score(t, o.argmax(1), average="macro", zero_division=0)),
        ("classes", "loss", lambda t, o: sk.log_loss(t, o.softmax(1), labels=[0, 1])),
        ("numbers", "mae", lambda t, o: sk.mean_absolute_error(t, o.squeeze(1))),
        ("numbers", "r2", lambda t, o: sk.r2_score(t, o.squeeze(1))),
    ],
)
def test_every_client_is_scored_on_its_own_test_samples(labels, metric, reference):
    task = task_of(labels)
    found = cl.run(FEDAVG, task, metrics=[metric], **ONCE)
    scores = found.client_scores
    assert scores.metric == metric
    assert list(scores.scores) == NAMES, "who has no test samples has no score"
    for name in NAMES:
        rows = rows_of(task, name)
        outputs = found.model(task.test_inputs[rows]).detach().double()
        assert scores.samples[name] == len(rows)
        assert scores.scores[name] == pytest.approx(reference(task.test_labels[rows].numpy(), outputs), rel=1e-5)
    if metric == "accuracy":
        assert scores.summary.mean == pytest.approx(found.history[-1]["mean_client_accuracy"])


def test_a_row_that_counts_for_several_clients_counts_for_each():
    task = task_of()
    rows, owners = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([0, 0, 1, 3, 3])
    found = cl.run(FEDAVG, replace(task, local_test=(rows, owners)), **ONCE)
    right = (found.model(task.test_inputs[:3]).argmax(1) == task.test_labels[:3]).double()
    expected = {"Avon": float(right[:2].mean()), "Brent": float(right[2]), "Dee": float(right[:2].mean())}
    assert found.client_scores.scores == expected


def test_a_score_that_is_undefined_is_none_and_is_left_out_of_the_summary():
    task = task_of()
    labels = task.test_labels.clone()
    labels[rows_of(task, "Dee")] = 1
    found = cl.run(FEDAVG, replace(task, test_labels=labels), metrics=["auroc"], **ONCE).client_scores
    assert found.scores["Dee"] is None
    assert found.summary.clients == 3
    none = ClientScores("auroc", {"Avon": None}, {"Avon": 3})
    assert none.summary.mean is None
    assert "no client has a defined auroc" in repr(none)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=45), st.sampled_from(["accuracy", "mae"]))
def test_summaries_are_what_numpy_says(values, metric):
    named = {str(number): value for number, value in enumerate(values)}
    found = ClientScores(metric, named, dict.fromkeys(named, 1)).summary
    tenth = int(np.ceil(len(values) / 10))
    low, high = np.sort(values)[:tenth].mean(), np.sort(values)[-tenth:].mean()
    worst, best = (low, high) if metric == "accuracy" else (high, low)
    expected = (len(values), np.mean(values), np.std(values), worst, best, np.ptp(values))
    assert tuple(vars(found).values()) == pytest.approx(expected, abs=1e-12)


def test_where_clients_have_no_tests_of_their_own_there_are_no_scores(tmp_path):
    run = cl.run(FEDAVG, toy_task(), folder=tmp_path / "run", **ONCE)
    assert run.client_scores is None
    assert not (tmp_path / "run" / "clients.json").exists()


def test_clients_json_says_that_it_is_not_private(tmp_path):
    run = cl.run(FEDAVG, task_of(), folder=tmp_path / "run", **ONCE)
    path = tmp_path / "run" / "clients.json"
    found = json.loads(path.read_text())
    assert found["private"] is False
    assert "not private" in found["note"]
    assert found["metric"] == "accuracy"
    assert found["summary"]["clients"] == 4
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    scores, personalized = client_files.read(tmp_path / "run")
    assert scores == run.client_scores
    assert personalized is None
    path.write_text('{"clients": [{}]}')
    with pytest.raises(Corrupted, match="found it damaged"):
        client_files.read(tmp_path / "run")


def test_scores_are_there_after_a_run_was_killed_and_resumed(tmp_path, monkeypatch):
    task, more = task_of(), {"rounds": 3, "engine": "loop", "checkpoint_every": 1}
    whole = cl.run(FEDAVG, task, **more)
    with killed_in_round(monkeypatch, 3):
        cl.run(FEDAVG, task, folder=tmp_path / "run", **more)
    assert not (tmp_path / "run" / "clients.json").exists()
    resumed = cl.run(FEDAVG, task, folder=tmp_path / "run", resume=True, **more)
    assert resumed.client_scores == whole.client_scores
    again = cl.run(FEDAVG, task, folder=tmp_path / "run", resume=True, **more)
    assert again.client_scores == whole.client_scores


def test_scores_are_those_of_the_model_where_a_budget_ended_the_run():
    task = task_of()
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=1, noise_multiplier=3.0)
    more = {"delta": 0.01, "engine": "loop", "evaluate_every": 1, "allow_large_delta": True}
    run = cl.run(method, task, rounds=50, epsilon=1.5, **more)
    assert run.stopped
    rows = rows_of(task, "Avon")
    right = (run.model(task.test_inputs[rows]).argmax(1) == task.test_labels[rows]).double()
    assert run.client_scores.scores["Avon"] == pytest.approx(float(right.mean()))


@pytest.mark.slow
def test_the_command_line_shows_scores_of_both_levels(tmp_path, command):
    task, more = task_of(), {"rounds": 1, "delta": 1e-3, "engine": "loop", "allow_large_delta": True}
    user = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=1, noise_multiplier=30.0)
    run = cl.run(user, task, folder=tmp_path / "user", **more)
    shown = command("show", tmp_path / "user", "--clients")
    assert shown.returncode == 0, shown.stderr
    assert "user, scores client by client:" in shown.stdout
    order = sorted(run.client_scores.scores, key=run.client_scores.scores.get)
    listed = [line.split() for line in shown.stdout.splitlines() if line.split()[:1] and line.split()[0] in NAMES]
    assert [float(row[2]) for row in listed] == sorted(float(row[2]) for row in listed), "the worst first"
    assert {row[0] for row in listed} == set(order)
    assert "accuracy of 4 clients: mean" in shown.stdout
    assert "not private" in shown.stdout
    sample = cl.methods.pfl(clip_norm=1.0, lr=0.1, batch_size=8, noise_multiplier=1.0)
    cl.run(sample, task, folder=tmp_path / "sample", **more)
    shown = command("show", tmp_path / "sample", "--clients")
    assert "sample, client by client:" in shown.stdout
    assert "spent at 0.001" in shown.stdout
    assert "sample, scores client by client:" in shown.stdout
    cl.run(user, toy_task(), folder=tmp_path / "neither", **more)
    refused = command("show", tmp_path / "neither", "--clients")
    assert refused.returncode == 2
    assert "all clients have one account" in refused.stderr
