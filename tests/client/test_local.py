"""Local training against plain PyTorch, client by client."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import cloister as cl
from cloister.client import sgd
from cloister.client.batches import shape_of, shuffled
from cloister.errors import CloisterError
from cloister.random.streams import fold
from cloister.round import cohort_total
from conftest import ENGINES, federation, toy_model, toy_task

SETTINGS = [
    {"local_steps": 5},
    {"local_epochs": 3},
    {"local_steps": 4, "momentum": 0.9},
    {"local_epochs": 2, "momentum": 0.5, "weight_decay": 0.1, "lr_decay": 0.5},
    {"local_steps": 7, "batch_size": 1, "weight_decay": 0.01},
    {"local_epochs": 2, "batch_size": 100, "momentum": 0.9},
]


def reference(task, model, rule: dict, round: int, client: int, seed: int = 0) -> torch.Tensor:
    """One client's update by a module, torch's own optimizer and a loop over the batches the plan names."""
    from cloister.random.streams import Streams

    rule = {"batch_size": 4, "lr": 0.3, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0, **rule}
    local = sgd(**rule)
    who = torch.tensor([client])
    shape = shape_of(task.population.counts[who], local.batching)
    keys = fold(torch.tensor(Streams(seed).key("batches", round)), who)
    samples, mask = shuffled(task.population, local.batching, shape, who, keys)
    net = copy.deepcopy(model).double()
    start = torch.cat([p.detach().flatten() for p in net.parameters()])
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=rule["lr"] * rule["lr_decay"] ** (round - 1),
        momentum=rule["momentum"],
        weight_decay=rule["weight_decay"],
    )
    for rows, real in zip(samples[0], mask[0], strict=True):
        if real.any():
            optimizer.zero_grad()
            F.cross_entropy(
                net(task.population.inputs[rows[real]].double()), task.population.labels[rows[real]]
            ).backward()
            optimizer.step()
    return torch.cat([p.detach().flatten() for p in net.parameters()]) - start


@pytest.mark.parametrize("rule", SETTINGS, ids=str)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
def test_each_clients_update_equals_plain_pytorch(rule, engine):
    task = toy_task()
    model = toy_model(task)
    method = cl.methods.fedavg(**{"lr": 0.3, "batch_size": 4, **rule})
    fed, w = federation(method, task=task, model=copy.deepcopy(model))
    for client in range(task.clients):
        found, nonfinite_updates = cohort_total(fed, engine, 3, w, torch.tensor([client]))
        assert nonfinite_updates == 0
        torch.testing.assert_close(found, reference(task, model, rule, 3, client), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
def test_a_cohort_is_the_sum_of_its_clients(engine):
    task = toy_task()
    model = toy_model(task)
    fed, w = federation(cl.methods.fedavg(lr=0.3, batch_size=4, local_epochs=2), task=task, model=copy.deepcopy(model))
    everybody, _ = cohort_total(fed, engine, 1, w, torch.arange(task.clients))
    apart = sum(reference(task, model, {"local_epochs": 2}, 1, client) for client in range(task.clients))
    torch.testing.assert_close(everybody, apart, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "rule", [{"local_steps": 3, "weight_decay": 0.5}, {"local_epochs": 2, "weight_decay": 0.5, "momentum": 0.9}]
)
def test_a_client_without_data_sends_zero_even_with_weight_decay(rule):
    fed, w = federation(cl.methods.fedavg(lr=0.3, **rule), task=toy_task(sizes=(4, 0)))
    for engine in ENGINES:
        found, _ = cohort_total(fed, engine, 1, w, torch.tensor([1]))
        assert torch.equal(found, torch.zeros_like(w))


def test_nothing_a_client_sends_depends_on_anothers_data():
    task = toy_task(sizes=(5, 3, 9))
    fed, w = federation(cl.methods.fedavg(lr=0.3, local_epochs=2, batch_size=4), task=task)
    others = fed.population.inputs.clone()
    others[5:] = float("nan")
    poisoned = type(fed.population)(others, fed.population.labels, fed.population.starts, fed.population.sizes)
    from dataclasses import replace

    for engine in ENGINES:
        clean, _ = cohort_total(fed, engine, 1, w, torch.tensor([0]))
        beside, nonfinite_updates = cohort_total(
            replace(fed, population=poisoned), engine, 1, w, torch.tensor([0, 1, 2])
        )
        assert nonfinite_updates == 2
        torch.testing.assert_close(clean, beside, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"lr": -0.1, "local_steps": 1}, "lr > 0"),
        ({"lr": 0.1}, "either local_steps or local_epochs"),
        ({"lr": 0.1, "local_steps": 2, "local_epochs": 2}, "either local_steps or local_epochs"),
        ({"lr": 0.1, "local_steps": 0}, "local_steps to be a whole number"),
        ({"lr": 0.1, "local_epochs": 1.5}, "local_epochs to be a whole number"),
        ({"lr": 0.1, "local_steps": 1, "batch_size": 0}, "batch"),
        ({"lr": 0.1, "local_steps": 1, "momentum": 1.0}, "momentum < 1"),
        ({"lr": 0.1, "local_steps": 1, "weight_decay": -1.0}, "weight_decay >= 0"),
        ({"lr": 0.1, "local_steps": 1, "lr_decay": 0.0}, "lr_decay <= 1"),
    ],
)
def test_bad_settings_are_refused(rule, message):
    with pytest.raises(CloisterError, match=message):
        sgd(**rule)
