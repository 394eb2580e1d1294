"""Landscapes: against filters scaled one by one, losses worked out by hand, and the run's own test loss."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import cloister as cl
from cloister.core import Layout
from cloister.errors import CloisterError
from cloister.runs.folder import RunFolder
from cloister.studies.landscape import Landscape, filter_normalized, read_landscape, write_landscape
from cloister.studies.sharpness import Sharpness, largest_eigenvalue
from conftest import toy_task

KEYS = {"rounds": 2, "delta": 1e-3, "engine": "loop", "progress": False, "evaluate_every": 1, "cohort": cl.full()}


def trained(folder=None, task=None, **more):
    method = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=more.pop("noise", 1.0))
    return cl.run(method, task or toy_task(), folder=folder, **{**KEYS, **more})


def test_every_filter_has_the_norm_that_it_has_in_the_model():
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.GroupNorm(1, 5), nn.Flatten(), nn.Linear(20, 3))
    layout = Layout.of(model)
    w = layout.flatten(dict(model.named_parameters()))
    one, again, other = (filter_normalized(w, layout, seed, number) for seed, number in ((3, 0), (3, 0), (3, 1)))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    found, filters = layout.views(one), 0
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            assert not found[name].any(), f"{name} stays where it is"
            continue
        for number in range(parameter.shape[0]):
            have = math.sqrt(sum(float(x) ** 2 for x in found[name][number].flatten()))
            want = math.sqrt(sum(float(x) ** 2 for x in parameter[number].detach().flatten()))
            assert have == pytest.approx(want, rel=1e-5)
            filters += 1
    assert filters == 5 + 3
    assert abs(float(torch.nn.functional.cosine_similarity(one, other, 0))) < 0.5


def test_the_middle_is_the_model_of_the_run_and_its_folder_stays_as_it_is(tmp_path):
    task, folder = toy_task(), tmp_path / "run"
    run = trained(folder, task)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for model in (run, run.model, folder, cl.load(folder, run.model)):
        own = run.model if model is folder else None
        found = cl.landscape(model, task, points=3, samples=None, hessian=False, own_model=own)
        assert found.center == pytest.approx(run.history[-1]["loss"], rel=1e-6)
        assert found.accuracy[1][1] == pytest.approx(run.accuracy)
    write_landscape(folder, found)
    assert read_landscape(folder) == found
    assert RunFolder.open(folder).certificate() == run.certificate
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "landscape.json"} == before
    assert "mark" not in json.loads((folder / "landscape.json").read_text())


def test_losses_on_the_plane_are_those_worked_out_by_hand():
    task = toy_task()
    torch.manual_seed(1)
    model = nn.Linear(6, 3).double()
    found = cl.landscape(model, task, points=5, range=0.8, samples=None, of="train", seed=4)
    layout = Layout.of(model)
    w = layout.flatten(dict(model.named_parameters()))
    a, b = (filter_normalized(w, layout, 4, number).numpy() for number in (0, 1))
    inputs, labels = task.population.inputs.double().numpy(), task.population.labels.numpy()
    for i, alpha in enumerate((-0.8, -0.4, 0.0, 0.4, 0.8)):
        for j, beta in enumerate((-0.8, -0.4, 0.0, 0.4, 0.8)):
            at = w.numpy() + alpha * a + beta * b
            logits = inputs @ at[:18].reshape(3, 6).T + at[18:]
            logits -= logits.max(1, keepdims=True)
            losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
            assert found.loss[i][j] == pytest.approx(losses.mean(), rel=1e-9)
            assert found.accuracy[i][j] == pytest.approx((logits.argmax(1) == labels).mean())
    assert (found.parameters, found.moved) == (21, 18)
    assert Landscape.from_json(json.loads(json.dumps(found.to_json()))) == found
    # the Hessian of the mean loss, whole
    logits = inputs @ w.numpy()[:18].reshape(3, 6).T + w.numpy()[18:]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    hessian = np.zeros((21, 21))
    for x, q in zip(inputs, p, strict=True):
        outer = np.kron(np.diag(q) - np.outer(q, q), np.outer([*x, 1], [*x, 1])) / len(labels)
        hessian += outer
    assert found.sharpness.hessian == pytest.approx(np.linalg.eigvalsh(hessian).max(), rel=0.02)
    rises = list(found.sharpness.rise.values())
    assert 0 < rises[0] < rises[1] < rises[2], "a convex loss of a model that is no minimum still curves upwards"


def test_a_loss_that_is_no_number_is_kept_and_drawn(tmp_path):
    found = Landscape(
        [-1.0, 0.0, 1.0],
        [-1.0, 0.0, 1.0],
        [[math.inf, 2.0, 3.0], [2.0, 1.0, 2.0], [3.0, 2.0, math.inf]],
        None,
        Sharpness({"1": math.inf}, None),
        *("test", 4, 0, 8, 6, "a note"),
    )
    write_landscape(tmp_path, found)
    assert read_landscape(tmp_path) == found
    found.plot(tmp_path / "x.png")


def test_training_samples_are_marked_and_refused_of_deployments(tmp_path):
    task = toy_task()
    run = trained(tmp_path / "run", task)
    found = cl.landscape(run, task, points=3, of="train", dimensions=1, hessian=False)
    assert "NOT PRIVATE" in found.note
    assert "NOT PRIVATE" in repr(found)
    assert len(found.line()) == 3
    write_landscape(tmp_path / "run", found)
    assert json.loads((tmp_path / "run" / "landscape.json").read_text())["mark"] == "NOT PRIVATE"
    assert (tmp_path / "run" / "landscape.json").stat().st_mode & 0o077 == 0
    found.plot(tmp_path / "x.png")
    secure = trained(tmp_path / "secure", task, secure_rng=True)
    for model in (tmp_path / "secure", secure, cl.load(tmp_path / "secure", secure.model)):
        with pytest.raises(CloisterError, match="simulation for a landscape on training samples"):
            cl.landscape(model, task, points=3, of="train", own_model=secure.model)
    for wrong in ({"points": 4}, {"of": "all"}, {"dimensions": 3}, {"range": 0.0}, {"samples": 0}):
        with pytest.raises(CloisterError, match="Expected"):
            cl.landscape(run, task, **wrong)


def test_a_landscape_is_drawn_from_the_command_line(command, tmp_path):
    keys = ["method=dp_fedavg", "data=digits", "clients=20", "clip_norm=1", "lr=1", "local_steps=1", "rounds=1"]
    keys += ["noise_multiplier=2", "sampling_rate=0.5", "delta=0.01", "allow_large_delta=true", "engine=loop"]
    folder = tmp_path / "run"
    assert command("run", *keys, "--folder", folder, "--quiet").returncode == 0
    done = command("landscape", folder, "--points", "3", "--samples", "0", "--no-hessian")
    assert done.returncode == 0, done.stderr
    assert "no epsilon covers it" in done.stdout
    assert (folder / "landscape.png").read_bytes().startswith(b"\x89PNG")
    assert read_landscape(folder).center == pytest.approx(RunFolder.open(folder).metrics()[-1]["loss"], rel=1e-6)
    again = cl.landscape(folder, points=3, samples=None, hessian=False)
    assert again == read_landscape(folder), "in Python, its data are read again as well"
    with pytest.raises(CloisterError, match="Expected a task, found None"):
        cl.landscape(nn.Linear(6, 3), points=3)
    assert command("show", folder).returncode == 0
    assert "already ended" in command("resume", folder).stdout
    assert command("landscape", folder, folder).returncode == 2, "several need a picture's name"
    (folder / "config.toml").write_text((folder / "config.toml").read_text().replace("clients = 20", "clients = 21"))
    with pytest.raises(CloisterError, match=r"Expected the data with which .* was trained, found others"):
        cl.landscape(folder, points=3)
    (folder / "config.toml").unlink()
    with pytest.raises(CloisterError, match="give its task there"):
        cl.landscape(folder, points=3)


class _Once(torch.autograd.Function):
    """An identity whose gradient cannot be differentiated."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_second_derivative_there_is_no_eigenvalue_and_other_errors_are_errors(broken):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(64, 10)

        def forward(self, x):
            if broken:
                raise RuntimeError("out of memory")
            return _Once.apply(self.linear(x.flatten(1)))

    task, module = cl.data.digits(clients=5), Own()
    layout = Layout.of(module)
    w = layout.flatten(dict(module.named_parameters()))
    if broken:
        with pytest.raises(RuntimeError, match="out of memory"):
            largest_eigenvalue(module, layout, task, w, 0)
    else:
        assert largest_eigenvalue(module, layout, task, w, 0) is None
