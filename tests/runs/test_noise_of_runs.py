"""Whose noise is whose: runs that differ in anything draw other noise, and a resumed run keeps its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import cloister as cl
from cloister.errors import CloisterError, Corrupted, UnsupportedMechanismError
from cloister.privacy.unit import ProtectedUnit
from conftest import federation, killed_in_round, prepared, toy_task

LOUD = cl.methods.pfl(clip_norm=0.5, batch_size=8, local_epochs=2, local_epoch="batch", noise_multiplier=20.0)


def net(activation: type[nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40), activation(), nn.Linear(40, 10))


def noise_of(method: cl.Method, task: cl.data.Task, model: nn.Module) -> str:
    return prepared(method, task, model=model).fed.streams.run


@pytest.mark.parametrize(
    "method", [LOUD, cl.methods.dp_fedavg(1.0, local_steps=1, noise_multiplier=50.0, noise="distributed")]
)
def test_runs_of_other_models_weights_or_data_have_other_noise(method):
    """Found in review: noise drowned the fingerprint of the model, and weights and data were not part of it."""
    task, other = cl.data.digits(clients=8), cl.data.digits(partition=cl.data.iid(clients=8, split_seed=1))
    runs = [
        noise_of(method, task, net(nn.Tanh)),
        noise_of(method, task, net(nn.ReLU)),
        noise_of(method, task, net(nn.Tanh, seed=1)),
        noise_of(method, other, net(nn.Tanh)),
    ]
    assert len(set(runs)) == 4
    assert runs[0] == noise_of(method, task, net(nn.Tanh))


def interrupted(folder, monkeypatch, **more):
    with killed_in_round(monkeypatch, at=4):
        go(folder, **more)


def go(folder, **more):
    task = cl.data.digits(clients=8)
    return cl.run(LOUD, task, rounds=5, delta=1e-3, folder=folder, checkpoint_every=2, engine="loop", **more)


def test_a_run_is_not_resumed_with_another_model(tmp_path, monkeypatch):
    interrupted(tmp_path / "r", monkeypatch, model=net(nn.Tanh))
    with pytest.raises(Corrupted, match="model changed"):
        go(tmp_path / "r", model=net(nn.ReLU), resume=True)


def test_a_run_that_is_resumed_with_other_weights_goes_on_with_its_own_noise(tmp_path, monkeypatch):
    """The checkpoint's model is what counts; rounds that were paid for are repeated to the bit."""
    whole = go(tmp_path / "whole", model=net(nn.Tanh))
    interrupted(tmp_path / "torn", monkeypatch, model=net(nn.Tanh))
    resumed = go(tmp_path / "torn", model=net(nn.Tanh, seed=5), resume=True)
    for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("place", ["central", "distributed"])
def test_a_method_for_clients_is_not_priced_for_samples(place):
    """Found in review: it would have been priced as if its batches were secret batches."""
    method = cl.methods.dp_fedavg(1.0, local_steps=1, batch_size=2, noise_multiplier=1.0, noise=place)
    method = replace(method, mechanism=replace(method.mechanism, unit=ProtectedUnit.SAMPLE))
    with pytest.raises(CloisterError, match="priced for single samples"):
        federation(method)
    with pytest.raises((CloisterError, UnsupportedMechanismError)):
        cl.run(method, toy_task(), rounds=1, delta=1e-3)


def test_coordinates_are_held_to_the_threshold():
    rule = cl.client.dp_sgd(
        cl.client.fixed(0.1),
        cl.client.sgd_optimizer(0.1),
        4,
        local_steps=1,
        clipping=cl.client.by_coordinate(lambda d: 1.0),
    )
    method = replace(cl.methods.dp_fed(local_steps=1, noise_multiplier=1.0), local=rule)
    with pytest.raises(CloisterError, match="lower the limit"):
        cl.run(method, toy_task(), rounds=1, delta=1e-3, engine="loop")


def test_overlapping_clients_of_different_sizes_stay_within_their_budget():
    """Found in review: each kept its budget, and together they exceeded it."""
    task = replace(toy_task(sizes=(40, 80)), copies=2)
    run = cl.run(cl.methods.pfl(clip_norm=0.5, batch_size=8), task, rounds=3, epsilon=2.0, delta=1e-3, engine="loop")
    assert 1.5 < run.epsilon <= 2.0
    with pytest.raises(CloisterError, match="no sample in common"):
        cl.run(cl.methods.cpsgd(batch_size=8), task, rounds=3, epsilon=2.0, delta=1e-3)


def test_a_view_that_mixes_samples_is_refused():
    """Found in review: what a view makes of the whole batch, no clip of single samples can undo."""
    plain = cl.client.preprocessing.plain()
    mixing = replace(plain, train=lambda inputs, key, dtype: plain.train(inputs - inputs.mean(0), key, dtype))
    with pytest.raises(CloisterError, match="every sample by itself"):
        cl.run(LOUD, replace(toy_task(), preprocessing=mixing), rounds=1, delta=1e-3, engine="loop")


class Centred(nn.Module):
    """Agrees with samples alone on dense inputs of one size, and mixes sparse ones."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 3)

    def forward(self, x):
        return self.dense(torch.minimum(x, 10 * x.abs().mean()))


def test_a_model_that_mixes_only_sparse_samples_is_found_out():
    from cloister.client.losses import cross_entropy
    from cloister.client.objective import objective_of
    from cloister.client.per_sample.vmap import PerSampleVmap

    objective = objective_of(Centred(), cross_entropy, torch.rand(3, 6), torch.tensor([0, 1, 2]), 3)
    assert isinstance(objective.per_sample.way, PerSampleVmap)
