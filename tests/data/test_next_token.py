"""Shakespeare for models that answer at every position."""

from __future__ import annotations

import pytest
import torch

import cloister as cl
from cloister.data.formats.shakespeare import encode
from cloister.errors import CloisterError
from cloister.runs.config import build

SAYINGS = {
    "ANN": "abcdefghijklmnopqrstuvwxyz",
    "BOB": "the quick brown fox jumps over",
    "CY": "zyxwvutsrqponmlkjihgfedcba",
}


@pytest.fixture(autouse=True)
def _play(tmp_path, monkeypatch):
    (tmp_path / "tinyshakespeare.txt").write_text("\n\n".join(f"{who}:\n{said}" for who, said in SAYINGS.items()))
    monkeypatch.setenv("CLOISTER_DATA", str(tmp_path))


def test_labels_are_the_characters_that_follow():
    task = cl.data.shakespeare(length=4, targets="every")
    last = cl.data.shakespeare(length=4)
    assert task.loss.name == "next_token"
    assert task.client_names == tuple(SAYINGS)
    assert torch.equal(task.population.inputs, last.population.inputs)
    assert torch.equal(task.population.labels[:, -1], last.population.labels)
    starts, counts = task.population.starts.tolist(), task.population.counts.tolist()
    for said, start, count in zip(SAYINGS.values(), starts, counts, strict=True):
        ids = encode(said)
        for window in range(count):
            at = 5 * window
            assert task.population.inputs[start + window].tolist() == ids[at : at + 4].tolist()
            assert task.population.labels[start + window].tolist() == ids[at + 1 : at + 5].tolist()
    assert task.test_labels.shape == task.test_inputs.shape
    assert task.model()(task.test_inputs).shape == (*task.test_labels.shape, task.classes)


def test_public_roles_are_labeled_likewise():
    task = cl.data.shakespeare(length=4, targets="every", public_samples=1)
    inputs, labels = task.public_samples
    assert task.clients == 2
    assert torch.equal(inputs[:, 1:], labels[:, :-1])


def test_keys_choose_the_model_that_fits():
    usual = {"data": "shakespeare", "length": 4, "rounds": 1, "clip_norm": 1.0, "local_steps": 1, "sampling_rate": 0.5}
    assert build(usual).values["model"] == "char_lstm"
    experiment = build({**usual, "targets": "every"})
    assert experiment.values["model"] == "char_transformer"
    assert experiment.values["every_position"] is True
    assert build({**usual, "model": "char_transformer"}).values["every_position"] is False
    task = experiment.start.args[1]
    run = cl.run(cl.methods.fedavg(local_steps=1), task, rounds=1, engine="loop")
    assert 0 <= run.accuracy <= 1


def test_what_does_not_fit_is_refused():
    with pytest.raises(CloisterError, match="targets to be one of next, every"):
        cl.data.shakespeare(length=4, targets="all")
    with pytest.raises(CloisterError, match="one label per sample"):
        cl.data.shakespeare(cl.data.dirichlet(2, 0.5), length=4, targets="every")
    task = cl.data.shakespeare(length=4, targets="every")
    lstm = cl.models.char_lstm((4,), task.classes)
    with pytest.raises(CloisterError, match="answers once for each label"):
        cl.run(cl.methods.fedavg(local_steps=1), task, model=lstm, rounds=1)


def test_it_can_be_looked_at(command, tmp_path):
    done = command("data", "show", "shakespeare", "length=4", "targets=every", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
