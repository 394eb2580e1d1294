"""Validation on samples that clients hold out: what is released, what it costs, and what follows from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import cloister as cl
from cloister.data.validation import split_validation
from cloister.errors import CloisterError
from cloister.privacy.accounts import Planned, had_it_gone_on
from cloister.privacy.events import Gaussian
from cloister.privacy.ledger import Ledger
from cloister.runs.folder import RunFolder
from cloister.runs.private_validation import one_by_one, private_validation
from conftest import killed_in_round, prepared

CLIENTS = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2)
SAMPLES = cl.methods.pfl(clip_norm=0.5, lr=0.5, batch_size=8)
METHODS = pytest.mark.parametrize("method", [CLIENTS, SAMPLES], ids=["clients", "samples"])


def digits_of(clients: int, each: int = 40):
    """So many digits for every client, of which a tenth is the same number everywhere: one price for all."""
    data = load_digits()
    x, y = (data.images / 16).astype(np.float32)[:, None], data.target
    mine = np.arange(clients * each)
    return cl.data.from_arrays(x[mine], y[mine], mine // each, test=(x[-200:], y[-200:]), classes=10)


TASK = digits_of(30)


def go(method=CLIENTS, task=TASK, **more):
    usual = {"rounds": 6, "epsilon": 4.0, "delta": 1e-3, "validation": "private", "engine": "loop", "progress": False}
    return cl.run(method, task, **{**usual, **more})


def test_held_out_samples_go_by_client_and_count_alone():
    less, held = split_validation(TASK, 0.2, seed=0)
    assert int(less.population.sizes.sum() + held.sizes.sum()) == int(TASK.population.sizes.sum())
    assert (less.population.sizes + held.sizes == TASK.population.sizes).all()
    assert 0.15 < float(held.sizes.sum() / TASK.population.sizes.sum()) < 0.25
    changed = TASK.population.inputs.clone()
    changed[7] = 0.123
    other = type(TASK.population)(changed, TASK.population.labels, TASK.population.starts, TASK.population.sizes)
    again, held_again = split_validation(cl.data.Task(**{**vars(TASK), "population": other}), 0.2, seed=0)
    differs = (again.population.inputs != less.population.inputs).flatten(1).any(1).sum()
    differs += (held_again.inputs != held.inputs).flatten(1).any(1).sum()
    assert int(differs) == 1, "with another sample in its place, every other stays where it is"


def test_without_noise_it_is_the_mean_over_clients_of_their_accuracies():
    ready = prepared(
        cl.methods.fedavg(lr=0.5, local_steps=1), TASK, validation="private", monitor="accuracy", delta=None
    )
    w = torch.randn(len(ready.w), generator=torch.Generator().manual_seed(1))
    found = private_validation(ready, Ledger.create(None, "test", {}), ready.held_out, 1, w)
    weight, bias = w[:640].view(10, 64), w[640:]
    means = []
    for start, size in zip(ready.held_out.starts.tolist(), ready.held_out.sizes.tolist(), strict=True):
        x = ready.held_out.inputs[start : start + size].flatten(1)
        right = (x @ weight.T + bias).argmax(1) == ready.held_out.labels[start : start + size]
        means.append(float(right.double().mean()) if size else 0.0)
    assert found == pytest.approx(np.mean(means), abs=1e-9)


@METHODS
def test_it_is_charged_and_the_run_stays_within_its_budget(method, tmp_path):
    run = go(method, folder=tmp_path / "run", evaluate_every=2)
    entries = RunFolder.open(tmp_path / "run").ledger().entries
    rounds = {entry.round for entry in entries if entry.what == "validation"}
    assert rounds == {2, 4, 6}
    assert run.epsilon <= 4.0
    assert "how models do on held-out samples" in run.certificate.released
    assert run.certificate.rounds_charged == 6
    assert [line["round"] for line in run.history if "validation" in line] == [2, 4, 6]


def test_it_is_noisy():
    """The same model, judged under other noise."""
    ready = prepared(CLIENTS, TASK, validation="private", epsilon=4.0)
    found = [private_validation(ready, Ledger.create(None, "t", {}), ready.held_out, n, ready.w) for n in range(1, 200)]
    (noise,) = ready.noise_of_query("validation")
    spread = np.std(found) * TASK.clients
    assert 0.75 * noise < spread < 1.3 * noise, "some eight deviations of a sample's own"


def test_it_ends_a_run_that_does_not_get_better():
    stuck = cl.methods.dp_fedavg(clip_norm=1e-6, lr=1e-6, local_steps=1)
    run = go(stuck, rounds=40, evaluate_every=1, patience=3, min_delta=10.0)
    assert len(run.history) == 4
    assert "private validation" in run.stopped
    assert 3.99 < run.epsilon <= 4.0, "when it ends is a release, too: promised in advance are all planned rounds"
    assert any("those that were run would cost epsilon" in gap for gap in run.certificate.not_covered)


@pytest.mark.parametrize("method", [CLIENTS, pytest.param(SAMPLES, marks=pytest.mark.slow)], ids=["clients", "samples"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(method, monkeypatch, tmp_path):
    whole = go(method, folder=tmp_path / "whole", evaluate_every=1, standardize=0.05)
    with killed_in_round(monkeypatch, at=4):
        go(method, folder=tmp_path / "torn", evaluate_every=1, standardize=0.05, checkpoint_every=2)
    resumed = go(method, folder=tmp_path / "torn", evaluate_every=1, standardize=0.05, checkpoint_every=2, resume=True)
    assert [line["validation"] for line in resumed.history] == [line["validation"] for line in whole.history]
    assert resumed.epsilon == whole.epsilon


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"validation_fraction": 0.0}, "validation_fraction"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"validation_share": 1.5}, "validation_share"),
        ({"validation_share": 0.6, "standardize": 0.5}, "leave something for training"),
        ({"task": cl.data.digits(partition=cl.data.overlapping(clients=5))}, "no sample in common"),
        ({"method": cl.methods.ddgauss(clip_norm=0.5, lr=0.1, local_steps=1)}, "Gaussian noise"),
    ],
)
def test_what_does_not_fit_is_one_sentence(more, message):
    with pytest.raises(CloisterError, match=message):
        go(**more)


def test_runs_that_hold_out_other_parts_do_not_share_noise():
    keys = {prepared(CLIENTS, TASK, validation="private", epsilon=4.0, validation_fraction=part).fed.streams.run
            for part in (0.1, 0.3)}  # fmt: skip
    assert len(keys) == 2, "the difference of two models with the same noise is the signal"


class Mixing(torch.nn.Module):
    """Looks at every sample beside the mean of its batch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer((x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3) if len(x) > 1 else x)


def test_one_client_moves_the_sum_by_one_whatever_the_model_does_with_a_batch():
    x = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    labels, owners = (x[:, 0] > 0).long(), np.arange(400) // 20
    far = x.clone()
    far[owners == 0] += 1e4
    method = cl.methods.pfl(clip_norm=0.5, lr=0.5, batch_size=8, noise_multiplier=0.0)
    sums = []
    for inputs in (x, far):
        task = cl.data.from_arrays(inputs, labels, owners, classes=2)
        ready = prepared(method, task, model=Mixing(), validation="private", monitor="accuracy", delta=None)
        w = torch.zeros(len(ready.w))
        w[0], w[4] = -5, 5
        held = ready.held_out
        found = private_validation(ready, Ledger.create(None, "test", {}), held, 1, w)
        sums.append(found * int(held.sizes.sum()))
    assert abs(sums[0] - sums[1]) <= int(held.sizes[0]) + 1e-6


class StopAfter(cl.Callback):
    def __init__(self, round):
        self.round = round

    def on_round(self, record):
        return cl.StopTraining("enough") if record.round == self.round else None


@METHODS
def test_a_run_that_ends_before_its_first_validation_is_certified_for_all_of_them(method):
    keys = {"evaluate_every": 3, "validation_share": 0.6}
    whole, ended = go(method, **keys), go(method, **keys, callbacks=[StopAfter(2)])
    assert ended.epsilon >= whole.epsilon - 1e-6


def test_a_query_that_was_paid_for_twice_is_not_one_less_to_come():
    ledger = Ledger.create(None, "test", {})
    ledger.charge("client", Gaussian(5.0), round=1, repeatable=False)
    for _ in range(3):
        ledger.charge("client", Gaussian(9.0), round=1, what="validation", repeatable=False)
    planned = {"validation": Planned(10, lambda unit: (Gaussian(9.0), 1))}
    events = had_it_gone_on(ledger, 10, planned, {"client": None})["client"].events
    assert events == {Gaussian(5.0): 10, Gaussian(9.0): 12}


def test_what_cannot_be_mapped_is_asked_in_a_loop_and_errors_are_not_lost():
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 3, generator=random).double(), torch.zeros(7)

    def branching(sample, label):
        return (sample * 2 if sample.sum() > 0 else -sample).sum().reshape(1)  # vmap cannot decide it for all at once

    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(branching)(x, y)
    expected = torch.stack([(row * 2 if row.sum() > 0 else -row).sum().reshape(1) for row in x])
    assert torch.equal(one_by_one(branching, x, y), expected)
    assert one_by_one(branching, x[:0], y[:0]).shape == (0, 1)

    def wrong(sample, label):
        return (sample @ torch.zeros(4).double()).reshape(1)

    for broken, kind in ((wrong, RuntimeError), (lambda sample, label: sample.nothing, AttributeError)):
        with pytest.raises(kind):
            one_by_one(broken, x, y)
