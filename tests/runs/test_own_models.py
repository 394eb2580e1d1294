"""Models of strangers: each is trained, or refused in one sentence before anything is written."""

from __future__ import annotations

import importlib
import re
import sys

import pytest
import torch

import cloister as cl
from cloister.runs.folder import RunFolder

CODE = """
import torch
from torch import nn


def no_arguments():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def two_arguments(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], classes))


def with_keys(shape, classes, hidden: int = 5, smooth=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.Tanh() if smooth else nn.ReLU(), nn.Linear(hidden, 10))


class Net(nn.Module):
    def __init__(self, hidden=7):
        super().__init__()
        self.body, self.head = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())


def frozen():
    model = Net()
    model.body.requires_grad_(False)
    return model


class Named(Net):
    def forward(self, x):
        return {"logits": super().forward(x), "size": x.sum()}


class Unnamed(Net):
    def forward(self, x):
        return {"one": super().forward(x), "other": x.sum()}


class Pair(Net):
    def forward(self, x):
        return super().forward(x), None


class Nothing(Net):
    def forward(self, x):
        super().forward(x)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.head(self.other(self.one(x.flatten(1)).tanh()))


class Complex(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("waves", torch.ones(64, dtype=torch.complex64))


class Broken(Net):
    def forward(self, x):
        return self.tail(x)


class Lacking(Net):
    def forward(self, x):
        return {}["logits"]


class InPlace(Net):
    def forward(self, x):
        x += 1
        return super().forward(x)


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.layer(x.flatten(1, 2)).flatten(1))


def double():
    return Net().double()


def half():
    return Net().half()


def mixed():
    model = Net()
    model.body.double()
    return model


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))


def wrongly_lazy():
    return nn.Sequential(nn.LazyConv3d(2, 9), nn.LazyLinear(10))


def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


def empty():
    return nn.Flatten()


def all_frozen():
    return Net().requires_grad_(False)


def narrow():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))


def huge():
    return nn.Sequential(nn.Flatten(), nn.Linear(10**6, 10**9))


def nowhere():
    with torch.device("meta"):
        return Net()


def scripted():
    return torch.jit.script(Net())


def parallel():
    return nn.DataParallel(Net())


def raising():
    raise KeyError("config")


def unknown(width):
    return Net(width)


made = Net()
"""

FINE = {
    "no_arguments": 650,
    "two_arguments": 650,
    "with_keys": 5 * 65 + 60,
    "Net": 7 * 65 + 80,
    "frozen": 80,
    "Named": 7 * 65 + 80,
    "Pair": 7 * 65 + 80,
    "Tied": 64 * 64 + 2 * 64 + 650,
    "double": 7 * 65 + 80,
    "half": 7 * 65 + 80,
    "mixed": 7 * 65 + 80,
    "lazy": 8 * 65 + 90,
}
REFUSED = {
    "batch_norm": "found BatchNorm1d at .* batch_norm = group_norm",
    "Unnamed": "found .'one', 'other'.: name one of them \"logits\"",
    "Nothing": "Expected a model that returns tensors, found 'NoneType'",
    "Complex": "real numbers, found torch.complex64 in 'waves'",
    "Broken": r"found that it fails \('Broken' object has no attribute 'tail'\)",
    "Lacking": r"found that it fails \(KeyError: 'logits'\)",
    "InPlace": "leaves its inputs as they are",
    "Attending": "split_attention",
    "wrongly_lazy": "a model whose lazy layers take inputs of shape",
    "empty": "trainable parameters, found 'Flatten'",
    "all_frozen": "trainable parameters, found 'Net'",
    "narrow": "at least 10 outputs per sample",
    "huge": "fits into memory",
    "nowhere": "'body.weight' on the device meta",
    "scripted": "a plain torch module, found RecursiveScriptModule",
    "parallel": "a plain torch module, found DataParallel",
    "raising": r"fails \(KeyError: 'config'\): fix the function",
    "unknown": "found width of model own_model:unknown: annotate it",
    "made": "found a Net that is made already",
    "Nett": 'perhaps you mean "Net"',
}
SHORT = ["clients=20", "rounds=1", "clip_norm=1", "noise_multiplier=1", "local_steps=1", "delta=1e-3", "engine=loop"]


@pytest.fixture(autouse=True)
def _own_model(tmp_path, monkeypatch):
    """A file in the current directory; it is forgotten afterwards."""
    (tmp_path / "own_model.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    importlib.invalidate_caches()
    yield
    sys.modules.pop("own_model", None)


@pytest.mark.parametrize("name", FINE)
def test_it_is_trained(name, command, tmp_path):
    done = command("run", *SHORT, "sampling_rate=0.5", f"model=own_model:{name}", "--folder", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(tmp_path / "run").description().model.parameters == FINE[name]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of torch.jit
@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_sentence(name, command, tmp_path):
    done = command("run", *SHORT, "sampling_rate=0.5", f"model=own_model:{name}", "--folder", tmp_path / "run")
    words = " ".join(done.stderr.split())
    assert done.returncode == 2, words
    assert re.search(REFUSED[name], words), words
    assert words.startswith("error: Expected ")
    assert not (tmp_path / "run").exists()


def test_its_arguments_are_keys(command, tmp_path):
    words = ["model=own_model:with_keys", "hidden=3", "smooth=false"]
    done = command("run", *SHORT, "sampling_rate=0.5", *words, "--folder", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert RunFolder.open(tmp_path / "run").description().model.parameters == 3 * 65 + 40


def test_batch_norm_is_converted_on_the_command_line(command, tmp_path):
    words = ["model=own_model:batch_norm", "batch_norm=group_norm", "--folder", tmp_path / "run"]
    assert command("run", *SHORT, "sampling_rate=0.5", *words).returncode == 0


def test_lazy_parameters_follow_from_the_runs_seed():
    sys.path.append("")
    lazy = importlib.import_module("own_model").lazy
    task, method = cl.data.digits(clients=10), cl.methods.fedavg(local_steps=1)
    found = [
        cl.run(method, task, model=model, rounds=1, seed=seed, engine="loop").model[1].weight
        for model, seed in ((lazy, 1), (lazy(), 1), (lazy, 2))
    ]
    assert torch.equal(found[0], found[1]), "of a function and of a module alike"
    assert not torch.equal(found[0], found[2])
