"""Local training against plain PyTorch, client by client."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import cloister as cl
from cloister.batches import shape_of, shuffled
from cloister.errors import CloisterError
from cloister.local import sgd
from cloister.round import cohort_total
from cloister.streams import fold
from conftest import ENGINES, federation, toy_model, toy_task

SETTINGS = [
    {"steps": 5},
    {"epochs": 3},
    {"steps": 4, "momentum": 0.9},
    {"epochs": 2, "momentum": 0.5, "weight_decay": 0.1, "lr_decay": 0.5},
    {"steps": 7, "batch": 1, "weight_decay": 0.01},
    {"epochs": 2, "batch": 100, "momentum": 0.9},
]


def reference(task, model, rule: dict, round: int, client: int, seed: int = 0) -> torch.Tensor:
    """One client's update by a module, torch's own optimiser and a loop over the batches the plan names."""
    from cloister.streams import Streams

    rule = {"batch": 4, "lr": 0.3, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0, **rule}
    local = sgd(**rule)
    who = torch.tensor([client])
    shape = shape_of(task.population.counts[who], local.batching)
    keys = fold(torch.tensor(Streams(seed).key("batches", round)), who)
    samples, mask = shuffled(task.population, local.batching, shape, who, keys)
    net = copy.deepcopy(model).double()
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    optimiser = torch.optim.SGD(
        net.parameters(),
        lr=rule["lr"] * rule["lr_decay"] ** (round - 1),
        momentum=rule["momentum"],
        weight_decay=rule["weight_decay"],
    )
    for rows, real in zip(samples[0], mask[0], strict=True):
        if real.any():
            optimiser.zero_grad()
            F.cross_entropy(
                net(task.population.inputs[rows[real]].double()), task.population.labels[rows[real]]
            ).backward()
            optimiser.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]) - start


@pytest.mark.parametrize("rule", SETTINGS, ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
def test_each_clients_update_equals_plain_pytorch(rule, engine):
    task = toy_task()
    model = toy_model(task)
    method = cl.methods.fedavg(**{"lr": 0.3, "batch": 4, **rule})
    fed, w = federation(method, task=task, model=copy.deepcopy(model))
    for client in range(task.clients):
        found, rejected = cohort_total(fed, engine, 3, w, torch.tensor([client]))
        assert rejected == 0
        torch.testing.assert_close(found, reference(task, model, rule, 3, client), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
def test_a_cohort_is_the_sum_of_its_clients(engine):
    task = toy_task()
    model = toy_model(task)
    fed, w = federation(cl.methods.fedavg(lr=0.3, batch=4, epochs=2), task=task, model=copy.deepcopy(model))
    everybody, _ = cohort_total(fed, engine, 1, w, torch.arange(task.clients))
    apart = sum(reference(task, model, {"epochs": 2}, 1, client) for client in range(task.clients))
    torch.testing.assert_close(everybody, apart, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule", [{"steps": 3, "weight_decay": 0.5}, {"epochs": 2, "weight_decay": 0.5, "momentum": 0.9}]
)
def test_a_client_without_data_sends_zero_even_with_weight_decay(rule):
    fed, w = federation(cl.methods.fedavg(lr=0.3, **rule), task=toy_task(sizes=(4, 0)))
    for engine in ENGINES:
        found, _ = cohort_total(fed, engine, 1, w, torch.tensor([1]))
        assert torch.equal(found, torch.zeros_like(w))


def test_nothing_a_client_sends_depends_on_anothers_data():
    task = toy_task(sizes=(5, 3, 9))
    fed, w = federation(cl.methods.fedavg(lr=0.3, epochs=2, batch=4), task=task)
    others = fed.population.inputs.clone()
    others[5:] = float("nan")
    poisoned = type(fed.population)(others, fed.population.labels, fed.population.starts, fed.population.sizes)
    from dataclasses import replace

    for engine in ENGINES:
        clean, _ = cohort_total(fed, engine, 1, w, torch.tensor([0]))
        beside, rejected = cohort_total(replace(fed, population=poisoned), engine, 1, w, torch.tensor([0, 1, 2]))
        assert rejected == 2
        torch.testing.assert_close(clean, beside, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"lr": -0.1, "steps": 1}, "lr > 0"),
        ({"lr": 0.1}, "either steps or epochs"),
        ({"lr": 0.1, "steps": 2, "epochs": 2}, "either steps or epochs"),
        ({"lr": 0.1, "steps": 0}, "steps to be a whole number"),
        ({"lr": 0.1, "epochs": 1.5}, "epochs to be a whole number"),
        ({"lr": 0.1, "steps": 1, "batch": 0}, "batch"),
        ({"lr": 0.1, "steps": 1, "momentum": 1.0}, "momentum < 1"),
        ({"lr": 0.1, "steps": 1, "weight_decay": -1.0}, "weight_decay >= 0"),
        ({"lr": 0.1, "steps": 1, "lr_decay": 0.0}, "lr_decay <= 1"),
    ],
)
def test_bad_settings_are_refused(rule, message):
    with pytest.raises(CloisterError, match=message):
        sgd(**rule)
