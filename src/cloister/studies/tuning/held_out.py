"""On what a candidate is trained and scored where nothing is charged: never on the test set.

A trial gets a task of its own, in which held-out training samples stand where the test samples were. The test set is
not in it at all, so that no choice can depend on it. Where clients are protected, whole clients are held out, as those
are whom a model has not seen; otherwise some samples of every client.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from cloister.client.population import Population
from cloister.data.task import Task
from cloister.data.validation import split_validation
from cloister.errors import expect, expect_share

FRACTION = 0.2
"""Of the clients, or of every client's samples."""


def held_out_task(task: Task, unit: str, fraction: float, seed: int) -> Task:
    """The task without its test set: a part of the training data is held out, and stands in its place."""
    expect_share("hold_out", fraction, "0.2 holds a fifth of the training data out")
    if unit == "client":
        return _by_clients(task, fraction, seed)
    less, held = split_validation(task, fraction, seed)
    expect(len(held.labels) > 0, "samples to hold out", "none", "raise hold_out")
    return _scored_on(less, held.inputs, held.labels)


def public_task(task: Task, seed: int) -> Task:
    """The task's public samples as a federation of their own, dealt at random to clients of the usual size."""
    remedy = "set some aside (public_samples = 2000), or name another data set as public_data"
    there = task.public_samples is not None and len(task.public_samples[1]) > 0
    expect(there, "public samples to tune on", f"none in {task.name}", remedy)
    assert task.public_samples is not None
    inputs, labels = task.public_samples
    usual = max(1.0, float(task.population.counts.double().mean()))
    clients = int(min(len(labels), max(_FEWEST, round(len(labels) / usual))))
    order = torch.from_numpy(np.random.default_rng([seed, 11]).permutation(len(labels)))
    sizes = torch.tensor([len(part) for part in np.array_split(np.arange(len(labels)), clients)])
    people = Population(inputs[order], labels[order], sizes.cumsum(0) - sizes, sizes)
    return replace(
        task, population=people, public_samples=None, local_test=None, copies=1, client_names=(), label_dependent=False
    )


_FEWEST = 5


def _by_clients(task: Task, fraction: float, seed: int) -> Task:
    people = task.population
    there = np.flatnonzero(people.counts.numpy())
    remedy = "tune on a federation with more clients"
    expect(len(there) >= 2, "two clients with samples, one of whom is held out", len(there), remedy)
    count = min(max(1, round(fraction * len(there))), len(there) - 1)
    held = np.sort(np.random.default_rng([seed, 12]).permutation(there)[:count])
    starts, sizes = people.starts.cpu().numpy(), people.counts.numpy()
    rows = torch.from_numpy(np.concatenate([np.arange(starts[one], starts[one] + sizes[one]) for one in held]))
    rest = torch.from_numpy(np.setdiff1d(np.arange(people.clients), held))
    names = tuple(task.client_names[one] for one in rest.tolist()) if task.client_names else ()
    fewer = replace(people, starts=people.starts[rest], sizes=people.sizes[rest])
    return _scored_on(replace(task, population=fewer, client_names=names), people.inputs[rows], people.labels[rows])


def _scored_on(task: Task, inputs: torch.Tensor, labels: torch.Tensor) -> Task:
    return replace(task, test_inputs=inputs.clone(), test_labels=labels.clone(), local_test=None)
