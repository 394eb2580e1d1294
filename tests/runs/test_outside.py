"""Methods, models and data of another package, named as package.module:function."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import cloister as cl
from cloister.errors import CloisterError
from cloister.runs.config import build, method_info
from cloister.runs.folder import RunFolder
from cloister.studies.planning import planned
from conftest import killed_in_round

CODE = '''
"""What a laboratory tries."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

import cloister as cl
from cloister.core.arguments import flat_arguments
from cloister.client import LocalSGD
from cloister.methods import register


@flat_arguments
def halved(clip_norm: Annotated[float, "norm of the clip"], share: float = 0.5, *, training: LocalSGD,
           noise_multiplier: float | None = None, server: cl.ServerOptimizer | None = None) -> cl.Method:
    """DP-FedAvg at a share of its clip."""
    return cl.Method(
        name="halved",
        local=cl.client.sgd(training=training),
        transform=cl.transforms.clip_l2(clip_norm * share),
        mechanism=cl.mechanisms.gaussian(noise_multiplier),
        server=server or cl.server.sgd(),
    )


@register("A laboratory, 2026", "nothing", "everybody", unit="nobody", cohort="full")
def plain(steps: int = 1):
    return cl.methods.fedavg(local_steps=steps)


def for_samples(clip_norm=1.0):
    return cl.methods.dp_fed(clip_norm=clip_norm, local_steps=1, lr=0.1, noise_multiplier=2.0)


class Net(nn.Sequential):
    def __init__(self, shape: tuple[int, ...], classes: int, hidden: Annotated[int, "width"] = 3) -> None:
        super().__init__(nn.Flatten(), nn.Linear(shape[0], hidden), nn.Tanh(), nn.Linear(hidden, classes))


def bare():
    return nn.Linear(4, 2)


def blobs(clients: int = 6, seed_of_data: int = 0) -> cl.data.Task:
    """Two clouds, with clients of their own."""
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(seed_of_data))
    return cl.data.from_arrays(x.numpy(), (x[:, 0] > 0).long().numpy(), [i % clients for i in range(60)], classes=2)


def dealt(partition: cl.data.Partition | None = None, clients: int = 3) -> cl.data.Task:
    return cl.data.digits(clients=clients, partition=partition)


number = 3


def wrong() -> int:
    return 3


def opaque(gradient: cl.client.gradients.Gradient) -> cl.Method: ...


def unknown(x: Nowhere) -> cl.Method: ...


def absent(x: cl.nowhere.At) -> cl.Method: ...


def by_place(clip_norm: float = 1.0, /) -> cl.Method: ...
'''
SHORT = {"rounds": 2, "delta": 1e-2, "engine": "loop"}
RUN = {
    **SHORT,
    "method": "laboratory.tried:halved",
    "clip_norm": 1.0,
    "local_steps": 1,
    "sampling_rate": 0.5,
    "noise_multiplier": 3.0,
}
ALL = {**RUN, "model": "laboratory.tried:Net", "data": "laboratory.tried:blobs", "clients": 5, "hidden": 4}


@pytest.fixture(autouse=True)
def _laboratory(tmp_path, monkeypatch):
    """A package in the current directory; it is forgotten afterwards."""
    (tmp_path / "laboratory").mkdir()
    (tmp_path / "laboratory" / "__init__.py").touch()
    (tmp_path / "laboratory" / "tried.py").write_text(CODE)
    (tmp_path / "laboratory" / "spoilt.py").write_text("def halved(:")
    (tmp_path / "laboratory" / "raising.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    importlib.invalidate_caches()
    known = dict(cl.methods.REGISTRY)
    yield
    cl.methods.REGISTRY.clear()
    cl.methods.REGISTRY.update(known)
    for name in ("laboratory", "laboratory.tried"):
        sys.modules.pop(name, None)


def test_parts_of_another_package_are_built_from_their_keys():
    experiment = build({**ALL, "lr": 0.3, "share": 0.25, "server_lr": 0.5})
    method, task = experiment.start.args
    assert method.transform.settings["clip_norm"] == 0.25
    assert method.local.settings["lr"] == 0.3
    assert method.server.settings["lr"] == 0.5
    assert task.clients == 5
    assert "partition" not in experiment.values, "its clients are its own"
    assert experiment.start.keywords["model"]()[1].out_features == 4
    assert 'method = "laboratory.tried:halved"' in experiment.toml
    assert experiment.start(progress=False).certificate.private


def test_data_that_take_a_partition_get_one():
    task = build({**RUN, "data": "laboratory.tried:dealt", "partition": "shards", "clients": 7}).start.args[1]
    assert task.clients == 7


def test_what_was_not_registered_says_itself_whom_it_protects():
    assert method_info(ALL).unit == "client"
    samples = {"method": "laboratory.tried:for_samples"}
    assert method_info(samples).unit == "sample"
    assert build({**SHORT, **samples}).values["cohort"] == "full"
    registered = {"method": "laboratory.tried:plain"}
    assert method_info(registered).paper == "A laboratory, 2026"
    assert build({"rounds": 1, **registered}).values["cohort"] == "full"
    assert "laboratory.tried:plain" not in cl.methods.CATALOGUE


def test_a_run_is_resumed_to_the_same_bits(tmp_path, monkeypatch, command):
    words = [f"{key}={value}" for key, value in {**ALL, "rounds": 4, "checkpoint_every": 1}.items()]
    assert command("run", *words, "--folder", "whole").returncode == 0
    experiment = build({**ALL, "rounds": 4, "checkpoint_every": 1})
    with killed_in_round(monkeypatch, at=3):
        experiment.start(folder=tmp_path / "torn", config=experiment.toml, progress=False)
    done = command("resume", "torn")
    assert done.returncode == 0, done.stderr
    models = [RunFolder.open(tmp_path / name).load("cpu").w for name in ("whole", "torn")]
    assert torch.equal(*models)


@pytest.mark.slow
def test_the_command_line_finds_the_current_directory(tmp_path):
    """As the installed program does it, whose own folder is on the path, and not the current one."""
    words = ["cloister", "run", *(f"{key}={value}" for key, value in ALL.items())]
    code = f"import sys; sys.path.remove(''); sys.argv = {words!r}; from cloister.__main__ import main; main()"
    places = [place for place in sys.path if place]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("halved-blobs-")
    assert 'data = "laboratory.tried:blobs"' in (folder / "config.toml").read_text()


def test_keys_are_shown_and_labels_drawn(command, tmp_path):
    page = command("methods", "laboratory.tried:halved").stdout
    assert "What a laboratory tries." in page
    assert "norm of the clip" in page
    assert "local learning rate" in page
    assert command("data", "show", "laboratory.tried:blobs").returncode == 0
    assert (tmp_path / "blobs-own.png").is_file()


FILE = """
epsilons = [8.0, 2.0]
[shared]
clients = 20
local_steps = 1
clip_norm = 1.0
sampling_rate = 0.5
rounds = 1
delta = 1e-2
[methods.dp_fedavg]
[methods.halved]
method = "laboratory.tried:halved"
[methods.plain]
method = "laboratory.tried:plain"
"""


def test_comparisons_take_them(tmp_path):
    path = tmp_path / "methods.toml"
    path.write_text(FILE)
    assert [run.folder for run in planned(path, [])][2:] == ["halved-epsilon-8", "halved-epsilon-2", "plain"]
    path.write_text(FILE.replace("[methods.halved]", '[methods."laboratory.tried:halved"]'))
    with pytest.raises(CloisterError, match="rename"):
        planned(path, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "laboratory.tired:halved"}, "No module named .laboratory.tired.*start in the"),
        ({"method": "laboratory.tried:halve"}, 'a function halve in laboratory.tried.*perhaps you mean "halved"'),
        ({"method": "laboratory.tried:number"}, "Expected a function for method = laboratory.tried:number, found 3"),
        (
            {"method": "laboratory.tried:wrong", "clip_norm": None},
            "Expected a Method of cloister as method, found that",
        ),
        ({"data": "laboratory.tried:wrong", "clients": None}, "Expected a Task of cloister as data, found that"),
        ({"method": "laboratory.tried:opaque"}, "found gradient of method laboratory.tried:opaque: annotate it"),
        ({"method": "laboratory.tried:unknown"}, "name 'Nowhere' is not defined"),
        ({"method": "laboratory.tried:absent"}, "has no attribute 'nowhere'"),
        ({"method": "laboratory.tried:by_place"}, "given by name, found clip_norm of method"),
        ({"method": "laboratory.spoilt:halved"}, "can be imported for method = laboratory.spoilt:halved"),
        ({"method": "laboratory.raising:halved"}, "division by zero"),
        ({"method": "laboratory.tried:"}, "Expected method as package.module:function"),
        ({"method": "../tried:halved"}, "Expected method as package.module:function"),
        ({"cohort": "laboratory.tried:wrong"}, "Expected cohort to be one of"),
        ({"share": "half"}, "share to be a number, found 'half': it is a key of method laboratory.tried:halved"),
        ({"clip_norm": "big"}, "clip_norm to be a number, found 'big': norm of the clip"),
        ({"shar": 0.5}, 'perhaps you mean "share"'),
        ({"gradient": "sam"}, "a known key"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(change, message):
    values = {key: value for key, value in {**RUN, "clients": 20, **change}.items() if value is not None}
    with pytest.raises(CloisterError, match=message) as found:
        build(values)
    assert len(str(found.value).splitlines()) == 1


def test_a_model_that_is_none_is_refused(tmp_path):
    with pytest.raises(CloisterError, match="Expected a Module of torch as model"):
        build({**RUN, "clients": 20, "model": "laboratory.tried:wrong"}).start(folder=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    run = build({**RUN, "data": "laboratory.tried:blobs", "model": "laboratory.tried:bare"}).start(progress=False)
    assert isinstance(run.model, torch.nn.Linear)


def test_the_method_in_contributing_works(tmp_path):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = re.search(r"   ```python\n(   \"\"\"Half-DP.*?)   ```", text, re.DOTALL)[1]
    (tmp_path / "laboratory" / "tried.py").write_text(textwrap.dedent(code))
    values = {**RUN, "method": "laboratory.tried:half_dp", "clients": 20}
    assert method_info(values).paper == "Somebody et al., NeurIPS 2026"
    assert build(values).start(progress=False).certificate.private


def test_what_lies_in_the_current_directory_does_not_stand_in_for_what_is_installed(tmp_path):
    """Found in review: after a part of another package, ./dp_accounting.py would have been the accountant."""
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('a stranger')")
    sys.modules.pop("colorsys", None)
    build(RUN | {"clients": 20})
    assert "tmp" not in importlib.import_module("colorsys").__file__
