"""What is tried before a run: a short trial, however long a round is."""

from __future__ import annotations

import pytest
import torch

import cloister as cl
from cloister.engine import choice
from cloister.engine.loop import Loop
from cloister.engine.made_up import made_up_clients, with_fewer_steps
from conftest import federation, toy_task

SIZES = (640, 64, 320, 16)
METHODS = {
    "epochs": cl.methods.fedavg(lr=0.1, local_epochs=20, batch_size=32),
    "steps": cl.methods.fedavg(lr=0.1, local_steps=100, batch_size=32),
    "private steps": cl.methods.pfl(clip_norm=1.0, local_epochs=20, batch_size=32, noise_multiplier=1.0),
    "rounds that differ": cl.methods.pfl(clip_norm=1.0, local_epochs=[20, 1], batch_size=32, noise_multiplier=1.0),
    "several phases": cl.methods.lus(
        clip_norm=1.0, lr=0.1, local_epochs=5, batch_size=32, noise_multiplier=1.0, sparsity=0.5
    ),
}


def steps_of(fed):
    counts = fed.population.counts.tolist()
    return [[phase.batching.steps_for(size, 1) for phase in fed.method.local.phases] for size in counts]


@pytest.mark.parametrize("name", METHODS)
def test_a_trial_takes_few_steps_of_the_same_batches(name):
    fed, _ = federation(METHODS[name], task=toy_task(sizes=SIZES))
    made = made_up_clients(fed, 4)
    short, times_as_many = with_fewer_steps(made, 8)
    before, after = steps_of(made), steps_of(short)
    assert max(max(steps) for steps in before) > 16
    assert max(max(steps) for steps in after) <= 8
    assert all(steps > 0 for client in after for steps in client)
    assert times_as_many == pytest.approx(sum(map(sum, before)) / sum(map(sum, after)))
    for one, other in zip(made.method.local.phases, short.method.local.phases, strict=True):
        assert one.batching.batch_size == other.batching.batch_size
    assert short.denominator == made.denominator
    assert not short.population.inputs.any()


def test_a_large_client_stays_large_beside_small_ones():
    fed, _ = federation(METHODS["epochs"], task=toy_task(sizes=SIZES))
    short, _ = with_fewer_steps(made_up_clients(fed, 4), 8)
    assert sorted(short.population.counts.tolist()) == [7, 26, 128, 256]


def test_short_rounds_are_tried_as_they_are():
    fed, _ = federation(cl.methods.fedavg(lr=0.1, local_epochs=1, batch_size=320), task=toy_task(sizes=SIZES))
    made = made_up_clients(fed, 4)
    short, times_as_many = with_fewer_steps(made, 8)
    assert times_as_many == 1
    assert steps_of(short) == steps_of(made)
    assert torch.equal(short.population.counts, made.population.counts)


def test_engines_are_tried_on_short_rounds_and_chosen_for_long_ones(monkeypatch):
    """One that needs a second for what is tried here would need a minute: then others are worth trying."""
    tried = []

    def seconds(engine, fed, w, repeats):
        tried.append((engine, max(map(sum, steps_of(fed)))))
        return 1.0 if engine == Loop() else 0.5

    monkeypatch.setattr(choice, "_seconds", seconds)
    fed, w = federation(METHODS["epochs"], task=toy_task(sizes=SIZES))
    engine = choice.choose(fed, w, 4, rounds=1)
    assert engine != Loop()
    assert {steps for _, steps in tried} <= set(range(1, choice.STEPS_TRIED + 1))
    assert len(tried) >= 2


@pytest.mark.parametrize(("rounds", "expected"), [(1, "graphed"), (4, "graphed, then compiled")])
def test_a_gpu_tries_few_steps_and_counts_all(monkeypatch, rounds, expected):
    """20 epochs of 20 steps at 4 s for 64 steps are 25 s a round: half of four rounds is left when a program is
    compiled, and next to nothing of one."""
    tried = []

    def seconds(engine, fed, w, repeats):
        tried.append(max(map(sum, steps_of(fed))))
        return 4.0 * sum(map(sum, steps_of(fed))) / 64

    monkeypatch.setattr(choice, "_seconds", seconds)
    fed, w = federation(METHODS["epochs"], task=toy_task(sizes=(640,)))
    engine = choice._on_a_gpu(fed, w, 1, rounds)
    assert max(tried) <= choice.STEPS_TRIED_ON_A_GPU
    assert engine.name == expected
