"""The average of released models: what it is, what is kept of it, and that an interruption changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import cloister as cl
from cloister.errors import Corrupted
from cloister.runs.folder import RunFolder
from cloister.runs.selection import Kept, Selection
from conftest import killed_in_round, toy_task

METHOD = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2, noise_multiplier=1.0)
KEYS = {"rounds": 6, "delta": 1e-3, "engine": "loop", "checkpoint_every": 2, "progress": False, "evaluate_every": 1}


def run(folder=None, **more):
    return cl.run(METHOD, toy_task(), **{**KEYS, **more}, folder=folder)


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@given(st.floats(0.01, 0.99), st.lists(st.floats(-5, 5), min_size=1, max_size=12))
def test_it_is_the_exponential_average_without_bias(decay, values):
    """Against the textbook: avg <- decay avg + (1 - decay) w from zero, divided by 1 - decay^t."""
    kept, plain = Kept(), 0.0
    for number, value in enumerate(values, 1):
        kept = Selection(average=decay).averaged(kept, number, torch.tensor([value], dtype=torch.float64))
        plain = decay * plain + (1 - decay) * value
    assert float(kept.average) == pytest.approx(plain / (1 - decay ** len(values)), rel=1e-7, abs=1e-9)


@pytest.fixture
def released(monkeypatch):
    """The models of all rounds, seen from outside."""
    from cloister.runs import training

    seen, real = [], training.run_round

    def watched(*args):
        outcome = real(*args)
        seen.append(outcome.w.clone())
        return outcome

    monkeypatch.setattr(training, "run_round", watched)
    return seen


def test_the_result_is_the_average_of_what_was_released(released, tmp_path):
    found = run(tmp_path / "run", average=0.7)
    weights = np.array([0.7 ** (6 - t) for t in range(1, 7)])
    expected = sum(w * m.double() for w, m in zip(weights / weights.sum(), released, strict=True))
    torch.testing.assert_close(flat(found.model).double(), expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(flat(found.model), released[-1], atol=1e-3), "the newest model is another"
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert torch.equal(
        torch.cat([stored[name].flatten() for name, _ in found.model.named_parameters()]), flat(found.model)
    )
    at = RunFolder.open(tmp_path / "run").load("cpu")
    assert torch.equal(at.w, released[-1]), "training would go on from the newest model"
    assert torch.equal(at.result, flat(found.model))


def test_what_is_tested_is_the_average(tmp_path):
    found = run(average=0.7)
    task = toy_task()
    right = (found.model(task.test_inputs.float()).argmax(1) == task.test_labels).float().mean()
    assert found.accuracy == found.history[-1]["accuracy"] == pytest.approx(float(right))


def test_it_costs_nothing_and_is_part_of_the_runs_identity():
    plain, averaged = run(), run(average=0.7)
    assert plain.certificate.prices == averaged.certificate.prices
    assert plain.certificate.configuration_sha256 != averaged.certificate.configuration_sha256


def test_an_interruption_changes_no_bit(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole", average=0.7)
    for number in (1, 3, 4, 6):
        path = tmp_path / f"cut{number}"
        with killed_in_round(monkeypatch, number):
            run(path, average=0.7)
        again = run(path, average=0.7, resume=True)
        assert torch.equal(flat(whole.model), flat(again.model))
        assert (path / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_another_average_is_another_run(tmp_path, monkeypatch):
    with killed_in_round(monkeypatch, 4):
        run(tmp_path / "run", average=0.7)
    for other in (0.8, None):
        with pytest.raises(Corrupted, match="found that selection changed"):
            run(tmp_path / "run", average=other, resume=True)


def test_a_model_that_is_not_the_average_is_found_out(tmp_path):
    run(tmp_path / "run", average=0.7)
    folder = RunFolder.open(tmp_path / "run")
    folder.certificate()
    at, names = folder.load("cpu"), load_file(folder.path / "model.safetensors")
    start, newest = 0, {}
    for name in folder.description().model.shapes:
        piece = names[name]
        newest[name] = at.w[start : start + piece.numel()].view(piece.shape).clone()
        start += piece.numel()
    save_file(newest, folder.path / "model.safetensors")
    with pytest.raises(Corrupted, match=r"model\.safetensors"):
        folder.certificate()
