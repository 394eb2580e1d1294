"""A validation split: some of every client's training samples, held out beside its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cloister.client.population import Population
from cloister.data.raw import Array
from cloister.data.splits import held_out
from cloister.data.task import Task
from cloister.errors import CloisterError, expect_share


def split_validation(task: Task, fraction: float, seed: int) -> tuple[Task, Population]:
    """The task without a fraction of every client's samples, and these.

    Which ones goes by the client and its number of samples, never by what is in a sample (`splits.held_out`). What is
    computed from them is private data like any other.
    """
    expect_share("validation_fraction", fraction, "0.1 holds out a tenth of every client's training samples")
    if task.copies > 1:
        raise CloisterError(
            f"Expected clients that have no sample in common for a private validation, found samples that lie with "
            f"{task.copies}: a sample would be trained on by one client and held out by another, so use a disjoint "
            "partition."
        )
    people = task.population
    held = np.zeros(len(people.labels), dtype=bool)
    for client, (start, size) in enumerate(zip(people.starts.tolist(), people.sizes.tolist(), strict=True)):
        held[start : start + size] = _held(client, size, fraction, seed)
    mask = torch.from_numpy(held)
    return replace(task, population=_kept(people, ~mask)), _kept(people, mask)


def left_by_validation(sizes: Sequence[int], fraction: float, seed: int) -> list[int]:
    """How many samples clients of these sizes have left to train on."""
    return [size - int(_held(client, size, fraction, seed).sum()) for client, size in enumerate(sizes)]


def _held(client: int, size: int, fraction: float, seed: int) -> Array:
    return held_out(f"validation of client {client}", size, seed, fraction)


def _kept(people: Population, mask: torch.Tensor) -> Population:
    """Every client with those of its samples that are chosen."""
    owners = torch.repeat_interleave(torch.arange(people.clients), people.sizes)
    rows = torch.cat(
        [torch.arange(0), *(torch.arange(a, a + n) for a, n in zip(people.starts, people.sizes, strict=True))]
    )
    chosen = mask[rows]
    sizes = torch.bincount(owners[chosen], minlength=people.clients)
    return Population(people.inputs[rows[chosen]], people.labels[rows[chosen]], sizes.cumsum(0) - sizes, sizes)
