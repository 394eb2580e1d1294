"""Personalization: against a loop written out, of all parameters and of the last layer, and that nothing leaves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import cloister as cl
from cloister.core import Layout
from cloister.errors import CloisterError
from cloister.runs.personalization import coordinates
from conftest import toy_task

ONCE = {"rounds": 1, "engine": "loop"}
FEDAVG = cl.methods.fedavg(lr=0.1, local_steps=1)
NAMES = ["Avon", "Brent", "Clyde"]


def task_of(sizes=(40, 30, 20), test: float = 0.5, **more):
    """Clients that want opposite things: what is right for one is wrong for another."""
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    inputs = random.normal(size=(len(owner), 4)).astype(np.float32)
    labels = (inputs[:, 0] * np.where(owner % 2, -1, 1) > 0).astype(int)
    return cl.data.from_arrays(inputs, labels, np.array(NAMES)[owner], test=test, classes=2, **more)


def net(dropout: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.3 if dropout else 0.0), nn.Linear(6, 2))


def by_hand(model: nn.Module, task, client: int, steps: int, lr: float, trained: list[str]) -> nn.Module:
    """Full batches by plain autograd."""
    own = net()
    own.load_state_dict(model.state_dict())
    people = task.population
    rows = slice(int(people.starts[client]), int(people.starts[client] + people.sizes[client]))
    for _ in range(steps):
        loss = nn.functional.cross_entropy(own(people.inputs[rows]), people.labels[rows])
        named = {name: p for name, p in own.named_parameters() if name in trained}
        for parameter, gradient in zip(named.values(), torch.autograd.grad(loss, list(named.values())), strict=True):
            parameter.data -= lr * gradient
    return own


@pytest.mark.parametrize(
    ("parameters", "trained"),
    [
        ("all", ["0.weight", "0.bias", "3.weight", "3.bias"]),
        ("head", ["3.weight", "3.bias"]),
        ("0.*", ["0.weight", "0.bias"]),
        ("*.bias", ["0.bias", "3.bias"]),
    ],
)
def test_clients_train_what_a_plain_loop_trains(parameters, trained):
    model, task = net(), task_of()
    found = cl.personalize(model, task, steps=7, lr=0.5, batch_size=1000, parameters=parameters, keep=True)
    for client, name in enumerate(NAMES):
        expected = by_hand(model, task, client, 7, 0.5, trained)
        assert list(found.parameters[name]) == trained
        for parameter, value in found.parameters[name].items():
            torch.testing.assert_close(value, expected.get_parameter(parameter).data, rtol=1e-4, atol=1e-5)
        rows = task.local_test[0][task.local_test[1] == client]
        for scores, used in ((found.before, model), (found.after, expected)):
            right = used(task.test_inputs[rows]).argmax(1) == task.test_labels[rows]
            assert scores.scores[name] == pytest.approx(float(right.double().mean()))
            assert scores.samples[name] == len(rows)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), net().parameters(), strict=True)), "left alone"


def test_it_helps_where_clients_differ():
    found = cl.personalize(net(), task_of(), steps=60, lr=0.5)
    assert found.after.summary.mean > 0.85 > found.before.summary.mean
    assert "not private" in repr(found)
    assert found.parameters is None


def test_it_follows_from_the_seed_and_from_nobody_elses_data():
    more = {"steps": 5, "batch_size": 4, "keep": True}
    first, again, other = (cl.personalize(net(dropout=True), task_of(), seed=seed, **more) for seed in (1, 1, 2))
    assert all(torch.equal(first.parameters["Avon"][n], again.parameters["Avon"][n]) for n in first.parameters["Avon"])
    assert first.after == again.after
    assert not torch.equal(first.parameters["Avon"]["3.weight"], other.parameters["Avon"]["3.weight"])
    alone = cl.personalize(net(dropout=True), task_of(sizes=(40, 1, 1)), seed=1, **more)
    assert torch.equal(first.parameters["Avon"]["3.weight"], alone.parameters["Avon"]["3.weight"])


def test_batches_go_through_all_samples_before_any_comes_again():
    """Labels that tell samples apart: after one pass in small steps of a linear model, each has counted once."""
    inputs = np.eye(6, dtype=np.float32)
    task = cl.data.from_arrays(inputs, np.arange(6.0), np.zeros(6, dtype=int), loss="mse", test=0.2)
    people = len(task.population.labels)
    model = nn.Linear(6, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = cl.personalize(model, task, steps=people, lr=0.25, batch_size=1, keep=True).parameters["0"]["weight"]
    expected = 0.5 * (task.population.inputs * task.population.labels[:, None]).sum(0)
    torch.testing.assert_close(found.squeeze(0), expected)


def test_the_head_is_the_last_module_that_has_parameters():
    model = nn.ModuleDict({"body": net(), "norm": nn.LayerNorm(3), "head": nn.Linear(3, 2), "end": nn.ReLU()})
    layout = Layout.of(model)
    like = torch.zeros(layout.size)
    assert coordinates("head", model, layout, like).sum() == 8
    model["head"].requires_grad_(False)
    layout = Layout.of(model)
    assert coordinates("head", model, layout, torch.zeros(layout.size)).sum() == 6, "one that is trained at all"
    assert coordinates("all", model, layout, torch.zeros(layout.size)).sum() == layout.size


def test_a_client_without_samples_to_train_on_keeps_the_model():
    from dataclasses import replace

    task = task_of()
    sizes = torch.tensor([0, *task.population.sizes[1:].tolist()])
    starts = task.population.starts.clone()
    people = type(task.population)(task.population.inputs, task.population.labels, starts, sizes)
    found = cl.personalize(net(), replace(task, population=people), steps=9, lr=0.5, keep=True)
    assert found.after.scores["Avon"] == found.before.scores["Avon"]
    assert torch.equal(found.parameters["Avon"]["3.weight"], net()[3].weight)


@pytest.mark.parametrize("loss", ["mse", "cox"])
def test_other_losses_are_personalized_too(loss):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(80, 3)).astype(np.float32)
    labels = inputs[:, 0] if loss == "mse" else np.stack([np.exp(-inputs[:, 0]), np.ones(80)], 1)
    task = cl.data.from_arrays(inputs, labels, np.arange(80) % 4, loss=loss)
    run = cl.run(FEDAVG, task, **ONCE)
    found = cl.personalize(run, task, steps=40, lr=0.3)
    assert found.before == run.client_scores
    better = found.after.summary.mean - found.before.summary.mean
    assert better < 0 if loss == "mse" else better > 0
    assert found.after.metric == {"mse": "mae", "cox": "concordance"}[loss]


def test_a_run_personalizes_at_its_end(tmp_path):
    task = task_of()
    more = {"personalize": "head", "personalize_steps": 30, "personalize_lr": 0.5}
    run = cl.run(FEDAVG, task, model=net(), folder=tmp_path / "run", **more, **ONCE)
    plain = cl.run(FEDAVG, task, model=net(), **ONCE)
    assert all(torch.equal(a, b) for a, b in zip(run.model.parameters(), plain.model.parameters(), strict=True))
    assert plain.personalized is None
    separately = cl.personalize(plain, task, steps=30, lr=0.5, parameters="head")
    assert run.personalized == separately
    found = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert found["personalization"]["private"] is False
    assert found["personalization"]["settings"]["parameters"] == "head"
    rows = {row["client"]: row["score"] for row in found["personalization"]["clients"]}
    assert rows == separately.after.scores
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert {name for name in kept if name.endswith("safetensors")} == {"model.safetensors", "checkpoint.safetensors"}


def test_the_command_line_personalizes(tmp_path, command):
    words = ["run", "data=digits", "clients=10", "cohort=full", "method=fedavg", "lr=0.1", "local_steps=1", "rounds=1"]
    words += ["engine=loop", "personalize=fine_tune", "personalize_steps=2", "--quiet", "--folder", tmp_path / "run"]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    assert "personalized, accuracy of 10 clients: mean" in done.stdout
    assert "not private" in done.stdout
    shown = command("show", tmp_path / "run", "--clients")
    assert "personalized" in shown.stdout


BAD = {
    "no task": (lambda: cl.personalize(net(), "digits"), "task to be a Task"),
    "no model": (lambda: cl.personalize("model", task_of()), "a run or a torch module to personalize, found str"),
    "no tests": (lambda: cl.personalize(net(), toy_task()), "clients with test samples of their own"),
    "no steps": (lambda: cl.personalize(net(), task_of(), steps=0), "steps to be a whole number of at least 1"),
    "half a step": (lambda: cl.personalize(net(), task_of(), steps=0.5), "steps to be a whole number"),
    "lr of 0": (lambda: cl.personalize(net(), task_of(), lr=0.0), "lr > 0"),
    "lr as a word": (lambda: cl.personalize(net(), task_of(), lr="fast"), "lr > 0 and finite, found 'fast'"),
    "no batch": (lambda: cl.personalize(net(), task_of(), batch_size=0), "batch_size to be a whole number"),
    "no such parameters": (lambda: cl.personalize(net(), task_of(), parameters="heads"), "parameters are 0.weight"),
    "parameters that are no word": (lambda: cl.personalize(net(), task_of(), parameters=3), 'parameters to be "all"'),
    "no such metric": (lambda: cl.personalize(net(), task_of(), metric="mae"), "found 'mae', which needs numbers"),
    "a seed below 0": (lambda: cl.personalize(net(), task_of(), seed=-1), "seed to be a whole number"),
    "a model that does not fit": (lambda: cl.personalize(nn.Linear(5, 2), task_of()), "takes inputs of shape"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_in_a_sentence(what):
    attempt, message = BAD[what]
    with pytest.raises(CloisterError, match=message) as refused:
        attempt()
    assert str(refused.value).startswith("Expected ")
    assert "\n" not in str(refused.value)
