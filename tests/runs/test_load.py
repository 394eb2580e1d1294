"""A model after its run: it says what it said when it was trained, and nothing that was altered is loaded."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import cloister as cl
from cloister.client.preprocessing import images
from cloister.errors import CloisterError, Corrupted
from cloister.runs.load import PUBLISHED
from cloister.runs.stored_inputs import WithPreprocessing
from conftest import killed_in_round, look_whole
from trained import BYTES, CLASSES, KINDS, NAMES, OWNERS, TABLE, load, task_of, train, wide


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every kind of task, trained once: the folder, the task and the run."""
    place, made = tmp_path_factory.mktemp("runs"), {}

    def of(kind: str):
        if kind not in made:
            task = task_of(kind)
            made[kind] = (place / kind, task, train(place / kind, task))
        return made[kind]

    return of


def seen(kind: str, inputs: torch.Tensor) -> torch.Tensor:
    """What a model sees of stored inputs, by hand."""
    return (inputs.float() / 255 - 0.5) / 0.5 if kind == "images" else inputs


def read(kind: str, outputs: torch.Tensor) -> torch.Tensor:
    """What outputs say, by hand."""
    if kind in ("named", "images", "tokens"):
        return outputs.argmax(1)
    if kind == "next_token":
        return outputs.argmax(2)
    if kind == "regression":
        return outputs[:, 0] * 7.0 + 50.0
    if kind == "survival":
        return torch.log1p(outputs.exp()).sum(1)
    if kind == "cox":
        return outputs[:, 0]
    if kind == "multi_label":
        return (outputs > 0).long()
    above = torch.sigmoid(outputs)
    return torch.where(above[:, 0] > 0.5, torch.where(above[:, 1] > 0.5, 2, 1), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_reported_in_training_is_what_is_found_again(runs, kind):
    folder, task, run = runs(kind)
    model = load(folder)
    found = model.evaluate(task.test_inputs, task.test_labels)
    last = run.history[-1]
    assert found["loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert found.get("accuracy") == last["accuracy"] == run.accuracy
    assert model.scores["loss"] == last["loss"]
    assert model.scores["accuracy"] == run.accuracy


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_model_that_was_trained(runs, kind):
    folder, task, run = runs(kind)
    with torch.no_grad():
        outputs = run.model(seen(kind, task.test_inputs))
    model = load(folder)
    assert torch.allclose(model.outputs(task.test_inputs.numpy()), outputs, atol=1e-6)
    wanted = read(kind, outputs).numpy()
    if kind in ("named", "ordinal"):
        wanted = np.array(NAMES)[wanted]
    found = model.predict(task.test_inputs)
    assert found.shape == wanted.shape
    assert (found == wanted).all() if wanted.dtype.kind in "iU" else np.allclose(found, wanted, atol=1e-5)


def test_probabilities_add_up(runs):
    for kind in ("named", "images", "tokens", "next_token", "ordinal"):
        folder, task, _ = runs(kind)
        found = load(folder).predict_proba(task.test_inputs)
        assert np.allclose(found.sum(-1), 1, atol=1e-5)
    folder, task, _ = runs("survival")
    surviving = load(folder).predict_proba(task.test_inputs)
    assert (np.diff(surviving, axis=1) <= 0).all()
    with pytest.raises(CloisterError, match="a loss with probabilities, found mse"):
        load(runs("regression")[0]).predict_proba(TABLE)


def test_labels_may_be_given_by_their_names(runs):
    folder, task, run = runs("named")
    model = cl.load(folder)
    names = np.array(NAMES)[task.test_labels.numpy()]
    assert model.evaluate(task.test_inputs, names) == model.evaluate(task.test_inputs, task.test_labels)
    assert model.evaluate(task.test_inputs, list(names))["accuracy"] == run.accuracy
    with pytest.raises(CloisterError, match="labels among none, some, all, found"):
        model.evaluate(task.test_inputs[:2], ["none", "most"])


def test_a_batch_of_any_size_gives_the_same_classes(runs, monkeypatch):
    folder, task, _ = runs("named")
    whole = cl.load(folder).predict(task.test_inputs)
    monkeypatch.setattr("cloister.runs.trained_model.BATCH", 5)
    assert (cl.load(folder).predict(task.test_inputs) == whole).all()


def test_the_published_files_are_enough(runs, tmp_path):
    folder, task, run = runs("named")
    for name in PUBLISHED:
        shutil.copy(folder / name, tmp_path)
    model = cl.load(str(tmp_path))
    assert (model.predict(task.test_inputs) == cl.load(folder).predict(task.test_inputs)).all()
    assert model.certificate == run.certificate
    assert model.certificate.epsilon == run.epsilon
    assert model.scores is None, "they are not published"
    assert model.certificate_sha256 == hashlib.sha256((folder / "certificate.json").read_bytes()).hexdigest()
    assert "epsilon" in repr(model)


@pytest.mark.parametrize("name", [*PUBLISHED, "certificate.txt"])
@pytest.mark.parametrize("published", [False, True])
def test_a_changed_byte_is_found_out(runs, tmp_path, name, published):
    folder, _, _ = runs("named")
    copy = tmp_path / "copy"
    if published:
        copy.mkdir()
        for one in (*PUBLISHED, "certificate.txt"):
            shutil.copy(folder / one, copy)
    else:
        shutil.copytree(folder, copy)
    data = bytearray((copy / name).read_bytes())
    places = [1, len(data) // 2, len(data) - 3]
    if published and name == "certificate.json":
        places = [1]  # a certificate without its ledger is taken at its word: its own hash has to be known
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1
        (copy / name).write_bytes(changed)
        with pytest.raises(Corrupted):
            cl.load(copy)
    (copy / name).unlink()
    if name != "certificate.txt" or not published:
        with pytest.raises(CloisterError):
            cl.load(copy)


def with_hashes(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, with the hash that makes it look whole."""
    (folder / name).write_bytes(content)
    stored = json.loads((folder / "certificate.json").read_text())
    stored["files"][name] = hashlib.sha256(content).hexdigest()
    (folder / "certificate.json").write_text(look_whole(stored))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"loss": {"name": "ordinal", "settings": {}, "own": False}}, "model.json of the run"),
        ({"preprocessing": {"name": "images", "settings": {}}}, "model.json of the run"),
        ({"configuration_sha256": "0" * 64}, "model.json of the run"),
        ({"model": {"name": "os:system", "arguments": {"command": "touch hacked"}}}, "may run"),
        ({"model": {"name": "nobody", "arguments": {}}}, "may run"),
        ({"model": {"name": "mlp", "arguments": {"shape": [5], "classes": 3}}}, "Expected the module that was trained"),
        ({"model": {"name": "mlp", "arguments": {"shape": 5}}}, "Expected a model that can be made again"),
        ({"model": "mlp"}, "damaged"),
        ({"format": "cloister model 99"}, "version that wrote it"),
        ({"outputs": "many"}, "damaged"),
        ({"standardization": {"mean": 1}}, "center, scale and bound of a standardization"),
        ({"adaptation": {"rank": 1}}, "a damaged adaptation"),
        ({"encoder": {"kind": "smell"}}, "an encoder of a known kind"),
        ({"encoder": {"kind": "images"}}, "damaged"),
        ({"dtype": "int3"}, "dtype float32 or float64"),
        ({"more": 1}, "damaged"),
    ],
)
def test_a_model_file_that_says_something_else_is_refused(runs, tmp_path, monkeypatch, change, why):
    """Also with hashes to match; and no code runs because a file names it."""
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(runs("named")[0], tmp_path / "copy"))
    about = json.loads((folder / "model.json").read_text())
    with_hashes(folder, "model.json", json.dumps({**about, **change}).encode())
    with pytest.raises(CloisterError, match=why):
        cl.load(folder)
    assert not (tmp_path / "hacked").exists()


def test_other_weights_with_a_hash_to_match_are_found_out(runs, tmp_path):
    folder = Path(shutil.copytree(runs("named")[0], tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, tmp_path / "other")
    with_hashes(folder, "model.safetensors", (tmp_path / "other").read_bytes())
    with pytest.raises(Corrupted, match="last checkpoint"):
        cl.load(folder)


class Frozen(nn.Module):
    """Some of it is not trained, and a buffer is part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)
        self.first.requires_grad_(False)
        self.register_buffer("shift", torch.randn(4))
        self.register_buffer("unnamed", torch.randn(4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)) + self.shift + self.unnamed)


def test_what_was_not_trained_is_kept_as_well(tmp_path):
    task = task_of("named")
    run = train(tmp_path / "r", task, model=Frozen())
    assert set(load_file(tmp_path / "r" / "model.safetensors")) == {
        *(f"{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")),
        *("shift", "unnamed"),
    }
    torch.manual_seed(99)
    other = Frozen()
    before = other.first.weight.clone()
    model = cl.load(tmp_path / "r", model=other)
    assert torch.equal(other.first.weight, before), "whoever gives a module keeps it as it is"
    assert torch.allclose(model.outputs(task.test_inputs), run.model(task.test_inputs).detach(), atol=1e-6)
    with pytest.raises(CloisterError, match="built in Python"):
        cl.load(tmp_path / "r")
    for wrong, why in (
        (nn.Linear(5, 3), "no weights for|weights for"),
        (nn.Sequential(), "weights for"),
        (lambda: 3, "to make a torch module"),
        (3, "model to be a torch module"),
        ("lab.nets:wide", "can be imported"),
        (Frozen().double(), None),
    ):
        if why is None:
            cl.load(tmp_path / "r", model=wrong)
            continue
        with pytest.raises(CloisterError, match=why):
            cl.load(tmp_path / "r", model=wrong)
    narrow = Frozen()
    narrow.last = nn.Linear(4, 2)
    with pytest.raises(CloisterError, match=r"last.weight of float32 of shape \(3, 4\), .*found.*\(2, 4\)"):
        cl.load(tmp_path / "r", model=narrow)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, 5)
        self.two = nn.Linear(5, 5)
        self.two.weight = self.one.weight
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(self.two(torch.tanh(self.one(x))))}


def test_tied_weights_and_outputs_with_names(tmp_path):
    task = task_of("named")
    run = train(tmp_path / "r", task, model=Tied)
    model = cl.load(tmp_path / "r", model="test_load:Tied")
    assert torch.allclose(model.outputs(task.test_inputs), run.model(task.test_inputs)["logits"].detach(), atol=1e-6)
    inner = model.module.get_submodule("model")
    assert inner.one.weight is inner.two.weight


def test_a_model_of_another_package_is_made_when_its_name_is_given(tmp_path):
    task = task_of("named")
    run = train(tmp_path / "r", task, model=partial(wide, (5,), 3, width=6))
    about = json.loads((tmp_path / "r" / "model.json").read_text())
    assert about["model"] == {"name": "trained:wide", "arguments": {"shape": [5], "classes": 3, "width": 6}}
    with pytest.raises(CloisterError, match="code of trained:wide may run"):
        cl.load(tmp_path / "r")
    found = cl.load(tmp_path / "r", "trained:wide").evaluate(task.test_inputs, task.test_labels)
    assert found["accuracy"] == run.accuracy
    with pytest.raises(CloisterError, match="the model trained:wide of this run"):
        cl.load(tmp_path / "r", "trained:train")


def test_a_loss_of_ones_own_is_given_again(tmp_path):
    def cubic(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - labels).abs() ** 3

    task = cl.data.from_arrays(TABLE, TABLE[:, 0], OWNERS, loss=cubic)
    run = train(tmp_path / "r", task)
    model = cl.load(tmp_path / "r")
    assert torch.equal(torch.from_numpy(model.predict(task.test_inputs)), model.outputs(task.test_inputs))
    with pytest.raises(CloisterError, match="a loss that Cloister knows, found cubic"):
        model.evaluate(task.test_inputs, task.test_labels)
    found = cl.load(tmp_path / "r", loss=cubic).evaluate(task.test_inputs, task.test_labels)
    assert found["loss"] == pytest.approx(run.history[-1]["loss"], rel=1e-6)


def test_double_precision_stays_so(tmp_path):
    task = task_of("named")
    run = train(tmp_path / "r", task, dtype="float64")
    model = cl.load(tmp_path / "r")
    assert model.outputs(task.test_inputs).dtype == torch.float64
    assert model.evaluate(task.test_inputs, task.test_labels)["loss"] == run.history[-1]["loss"]


def test_a_run_that_was_stopped_by_its_budget_has_the_scores_of_its_last_model(tmp_path):
    task = task_of("named")
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.5, local_steps=2, batch_size=4, noise_multiplier=4.0)
    four = cl.run(method, task, rounds=4, cohort=cl.full(), delta=1e-3, engine="loop").epsilon
    settings = {"rounds": 50, "cohort": cl.full(), "delta": 1e-3, "epsilon": four + 1e-6, "engine": "loop"}
    run = cl.run(method, task, folder=tmp_path / "r", evaluate_every=3, **settings)
    assert run.stopped
    model = cl.load(tmp_path / "r")
    found = model.evaluate(task.test_inputs, task.test_labels)
    assert model.scores["loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert model.scores["accuracy"] == found["accuracy"] == run.accuracy


@pytest.mark.parametrize("config", [None, "rounds = 3\n"])
def test_a_run_that_has_not_ended_is_refused(tmp_path, monkeypatch, config):
    with killed_in_round(monkeypatch, at=2):
        train(tmp_path / "r", task_of("named"), config=config)
    with pytest.raises(CloisterError, match="cloister resume" if config else "resume=True"):
        cl.load(tmp_path / "r")


def test_folders_that_are_no_runs_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path, tmp_path / "none", tmp_path / "file", "a\0b", 3, None):
        with pytest.raises(CloisterError, match=r"^Expected .*folder"):
            cl.load(wrong)


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        ("named", TABLE[:, :4], "shape"),
        ("named", TABLE[0], "put it into a list"),
        ("named", TABLE[:0], "at least one row"),
        ("named", TABLE.astype(int), "inputs of float32, as in training, found 'int64'"),
        ("named", np.full((2, 5), np.nan, dtype=np.float32), "finite inputs"),
        ("named", [["a"] * 5], "numbers"),
        ("named", "table.csv", "an array of inputs, found the path"),
        ("named", None, "numbers"),
        ("images", BYTES.astype(np.float32), "inputs of uint8"),
        ("images", BYTES[:, :1], "shape"),
        ("images", BYTES.transpose(0, 2, 3, 1), "shape"),
        ("tokens", np.full((2, 7), 12), "inputs that the model takes"),
        ("tokens", np.zeros((2, 7)), "inputs of int64"),
    ],
)
def test_inputs_of_another_kind_are_one_sentence(runs, kind, raw, why):
    model = cl.load(runs(kind)[0])
    for ask in (model.predict, model.predict_proba, model.outputs):
        with pytest.raises(CloisterError, match=why) as found:
            ask(raw)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        (None, "labels to compare with"),
        (CLASSES[:3], "as many labels as rows"),
        (np.full(len(TABLE), 3), "from 0 to 2"),
        (np.full(len(TABLE), 0.5), "whole numbers"),
        (["most"] * len(TABLE), "labels among"),
    ],
)
def test_labels_that_do_not_fit_are_one_sentence(runs, labels, why):
    with pytest.raises(CloisterError, match=why):
        cl.load(runs("named")[0]).evaluate(TABLE, labels)


@pytest.mark.parametrize(("pad", "size"), [(0, None), (0, 5), (2, 7), (3, 10), (1, 8)])
def test_the_module_prepares_inputs_as_training_does(pad, size):
    preprocessing = images((0.1, 0.2, 0.3), (0.5, 0.6, 0.7), pad=pad, size=size, flip=True)
    module = WithPreprocessing(nn.Identity(), preprocessing, torch.float32)
    stored = torch.from_numpy(BYTES[:9])
    assert torch.equal(module(stored), preprocessing.test(stored, torch.float32))
