"""Whom membership is guessed of: training samples, and as many others of the same clients, in pairs.

A fair attack has members and others of one distribution. What `fraction` left out of the data is that: which of a
client's samples are trained on was drawn. A test set may be other people's (MNIST's is), and is taken where nothing was
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cloister.client.population import Population
from cloister.data.task import Task
from cloister.errors import expect
from cloister.runs.config import build

LEFT_OUT, TEST = "samples of the same clients that the run left out", "the test set"


@dataclass(frozen=True)
class Candidates:
    """Members, by their rows in the population, and beside each another sample that nobody trained on."""

    rows: Tensor
    inputs: Tensor
    """Of the others, as they are stored."""
    labels: Tensor
    others: str
    """Where the others come from, in words."""

    def swapped(self, task: Task, stays: Tensor) -> Task:
        """The task in which, of each pair, either the member takes part, or the other sample in its place."""
        people = task.population
        inputs, labels = people.inputs.clone(), people.labels.clone()
        goes = ~stays
        inputs[self.rows[goes]], labels[self.rows[goes]] = self.inputs[goes], self.labels[goes]
        return replace(task, population=Population(inputs, labels, people.starts, people.sizes))


def candidates(values: Mapping[str, Any], task: Task, count: int, seed: int) -> Candidates:
    """Pairs of a run with these keys, drawn at random, `count` of them at most."""
    random = torch.Generator().manual_seed(seed)
    people = task.population
    private = values.get("validation") == "private"
    expect(not private, "a run that trains on all samples", "private validation", "attack a run without it")
    rows, owners = owned(people)
    found = None if people.stored else _left_out(values, task)
    if found is not None:
        inputs, labels, whose = found
        pairs, others = _paired(owners, whose, random), LEFT_OUT
    else:
        inputs, labels, others = task.test_inputs, task.test_labels, TEST
        most = min(len(rows), len(labels))
        pairs = torch.stack([torch.randperm(size, generator=random)[:most] for size in (len(rows), len(labels))])
    there = pairs.shape[1]
    expect(there >= 10, "10 training samples and as many others to tell apart", there, "attack a run on more data")
    pairs = pairs[:, torch.randperm(pairs.shape[1], generator=random)[:count]]
    return Candidates(rows[pairs[0]], inputs[pairs[1]], labels[pairs[1]], others)


def owned(people: Population) -> tuple[Tensor, Tensor]:
    """The rows that belong to somebody, and to which client."""
    pieces = zip(people.starts.tolist(), people.counts.tolist(), strict=True)
    rows = torch.cat([torch.arange(0), *(torch.arange(start, start + count) for start, count in pieces)])
    return rows, torch.repeat_interleave(torch.arange(people.clients), people.counts)


def _left_out(values: Mapping[str, Any], task: Task) -> tuple[Tensor, Tensor, Tensor] | None:
    """What `fraction` left out of the same people's samples: inputs, labels, and whose they are. None where it left out
    nothing, or where clients are no people, so that a client of all the data is another one."""
    if values.get("fraction", 1.0) == 1.0 or values.get("partition") != "natural" or values.get("public_samples"):
        return None
    whole = build({**values, "fraction": 1.0}).task
    if whole is None or whole.clients != task.clients:
        return None
    seen, there = set(_prints(task.population)), _prints(whole.population)
    if not seen <= set(there):
        return None
    rows, owners = owned(whole.population)
    left = torch.tensor([one not in seen for one in there])
    return whole.population.inputs[rows[left]], whole.population.labels[rows[left]], owners[left]


def _prints(people: Population) -> list[tuple[int, bytes]]:
    """What tells samples apart: the client, and the bytes of the input."""
    rows, owners = owned(people)
    numbers = zip(rows.tolist(), owners.tolist(), strict=True)
    return [(owner, people.inputs[row].numpy().tobytes()) for row, owner in numbers]


def _paired(owners: Tensor, others: Tensor, random: torch.Generator) -> Tensor:
    """Positions of members and of others, each pair of one client."""
    found = []
    for client in sorted(set(owners.tolist())):
        mine, theirs = (torch.nonzero(whose == client).flatten() for whose in (owners, others))
        most = min(len(mine), len(theirs))
        drawn = [some[torch.randperm(len(some), generator=random)[:most]] for some in (mine, theirs)]
        found.append(torch.stack(drawn))
    return torch.cat(found, dim=1)
