"""trust = "sum" beside a plain writing of it: sample by sample, in loops, without the library's rules or its noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cloister as cl
from cloister.engine import Loop, Vectorized
from cloister.errors import CloisterError
from cloister.privacy.ledger import Ledger
from cloister.round import run_round
from conftest import federation, plan_of, toy_task

CLIP, LR, MOMENTUM, DECAY, SIZES = 0.3, 0.7, 0.9, 0.1, (7, 3, 12)


def sample_gradient(model: nn.Module, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    torch.nn.utils.vector_to_parameters(w, model.parameters())
    found = torch.autograd.grad(F.cross_entropy(model(x[None]), y[None]), list(model.parameters()))
    return torch.cat([one.flatten() for one in found])


def steps(task, model: nn.Module, w: Tensor, batches: list[list[list[int]]], expected: float, mask=None) -> Tensor:
    """DP-SGD on all data without noise; `batches` are rows by round and client."""
    velocity = torch.zeros_like(w)
    for round, by_client in enumerate(batches):
        total = torch.zeros_like(w)
        active = torch.ones_like(w) if mask is None else mask[round]
        for rows in by_client:
            for row in rows:
                g = (
                    sample_gradient(model, w, task.population.inputs[row].double(), task.population.labels[row])
                    * active
                )
                total += g / max(1.0, float(g.norm()) / (CLIP * math.sqrt(float(active.mean()))))
        g = total / expected / float(active.mean()) + DECAY * w
        velocity = MOMENTUM * velocity + g
        w = w - LR * velocity
    return w


def batches_of(fed, w: Tensor, rounds: int) -> list[list[list[int]]]:
    """The library's draws, which are its to choose."""
    found = []
    for round in range(1, rounds + 1):
        plan = plan_of(fed, round, w, torch.arange(len(SIZES)))
        (drawn,) = plan.drawn(plan.clients, len(SIZES)).batches
        rows = [drawn.samples[c, 0][drawn.mask[c, 0]] + int(fed.population.starts[c]) for c in range(len(SIZES))]
        found.append([one.tolist() for one in rows])
    return found


@pytest.mark.parametrize("engine", [Loop(), Vectorized(chunk=2)], ids=lambda e: e.name)
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"sample_rate": 0.5}, 1e-10),
        ({"sample_rate": 1.0}, 1e-10),
        ({"sample_rate": 0.5, "noise": "discrete"}, 2e-2),
        ({"batch_size": 4, "poisson_rate": "exact"}, 1e-10),
    ],
    ids=["rate", "whole", "discrete", "batch_size"],
)
def test_without_noise_it_is_momentum_sgd_on_all_samples(settings, tolerance, engine):
    task, rounds = toy_task(SIZES), 3
    method = cl.methods.pfl(
        CLIP, LR, momentum=MOMENTUM, weight_decay=DECAY, noise_multiplier=0.0, trust="sum", **settings
    )
    model = nn.Linear(task.shape[0], 3).double()
    fed, start = federation(method, task=task, model=model)
    w, state, ledger = start, fed.method.init(start), Ledger.create(None, "test", {})
    for number in range(1, rounds + 1):
        w, state, *_ = run_round(fed, ledger, engine, number, w, state)
    rates = [settings["sample_rate"]] * 3 if "sample_rate" in settings else [min(1.0, 4 / n) for n in SIZES]
    expected = float(np.dot(rates, SIZES))
    reference = steps(task, nn.Linear(task.shape[0], 3).double(), start, batches_of(fed, start, rounds), expected)
    assert float((w - reference).norm()) <= tolerance * float((reference - start).norm())


def test_a_masked_sum_is_sgd_on_the_masked_coordinates():
    task = toy_task(SIZES)
    method = cl.methods.fed_spa(
        CLIP, keep_fraction=0.5, lr=LR, sample_rate=0.5, noise_multiplier=0.0, trust="sum", server=cl.server.sgd()
    )
    fed, start = federation(method, task=task, model=nn.Linear(task.shape[0], 3).double())
    found = run_round(fed, Ledger.create(None, "test", {}), Loop(), 1, start, fed.method.init(start)).w
    mask = fed.broadcast(1, start, {})["0"]["active"]
    rows = batches_of(fed, start, 1)
    reference = steps(task, nn.Linear(task.shape[0], 3).double(), start, rows, 0.5 * sum(SIZES), [mask])
    reference = reference + LR * DECAY * start  # which has no weight decay
    torch.testing.assert_close(found, reference, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("honest", "left"), [(1.0, "0.9574 0.8165 0.7071"), (0.75, "1 0.9428 0.8165"), (0.5, "1 1 1")])
def test_a_certificate_says_what_is_left_of_the_noise_against_members_who_collude(honest, left):
    """Of 12 shares of variance 1 / (12 h) each, those of 11, 8 and 6; never more than is priced."""
    method = cl.methods.pfl(trust="sum", sample_rate=1.0, noise_multiplier=1.0, honest_fraction=honest)
    fed, _ = federation(method, task=toy_task((4,) * 12))
    (note,) = (one for one in fed.method.notes if "colludes" in one)
    told = ", ".join(
        f"{one} if it knows the shares of {t} of 12" for one, t in zip(left.split(), (1, 4, 6), strict=True)
    )
    assert f"of the noise multiplier 1 there is left against them {told};" in note


@pytest.mark.parametrize("method", [cl.methods.fed_spa, cl.methods.dp_fed])
def test_a_round_is_one_step_and_more_are_refused(method):
    """In a sweep over trust, one step is what all rows have."""
    known = {"noise_multiplier": 1.0, "trust": "sum"}
    assert method(local_steps=1, **known) is not None
    for wrong in ({"local_steps": 2}, {"local_epochs": 1}):
        with pytest.raises(CloisterError, match="a round is one step of all clients together"):
            method(**wrong, **known)
