"""From clients and their samples to mini-batches, for many clients at once.

All samples lie in one tensor, sorted by client; a batch is a list of indices into it. Which samples make
which batch depends on the client's key alone, never on who else is in the cohort or how it is chunked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cloister.errors import expect
from cloister.joints import Batching
from cloister.streams import fold


@dataclass(frozen=True)
class Population:
    """The clients' samples: client i owns rows starts[i] to starts[i] + sizes[i]."""

    inputs: Tensor
    labels: Tensor
    starts: Tensor
    sizes: Tensor

    def __post_init__(self) -> None:
        ends = self.starts + self.sizes
        apart = bool((self.starts[1:] >= ends[:-1]).all()) and bool((self.sizes >= 0).all())
        inside = not len(ends) or (int(self.starts[0]) >= 0 and int(ends[-1]) <= len(self.labels))
        same = len(self.starts) == len(self.sizes) and len(self.inputs) == len(self.labels)
        expect(
            apart and inside and same, "clients with rows of their own", "overlapping or missing rows", "lay them out"
        )

    @property
    def clients(self) -> int:
        """How many clients there are, those without samples included."""
        return len(self.sizes)

    def to(self, device: torch.device, dtype: torch.dtype) -> Population:
        """The same on another device; inputs that are floating become `dtype`."""
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None)
        return Population(inputs, self.labels.to(device), self.starts.to(device), self.sizes.to(device))


class Plan(NamedTuple):
    """Batches of k clients: sample indices and which of them are real, [k, steps, batch].

    `ragged` says that some client has fewer steps than others, so that steps without a real sample occur.
    """

    samples: Tensor
    mask: Tensor
    ragged: bool


def plan(population: Population, batching: Batching, clients: Tensor, keys: Tensor) -> Plan:
    """The batches of the given clients, padded to a common shape.

    A client's samples are shuffled anew for every pass and cut into pieces of `batching.batch`; the last
    piece of a pass may be short. Padding repeats a sample of the same client, so that nothing a client
    computes ever depends on anybody else's data.
    """
    starts, sizes = population.starts[clients], population.sizes[clients]
    most = max(int(sizes.max()), 1)
    width = min(batching.batch, most)
    pieces = (sizes + batching.batch - 1) // batching.batch
    per_pass = pieces.clamp(min=1)
    if batching.epochs is not None:
        passes, own_steps = batching.epochs, batching.epochs * pieces
    else:
        assert batching.steps is not None
        own_steps = torch.where(sizes > 0, batching.steps, 0)
        passes = int((-(-own_steps // per_pass)).max())
    steps = int(own_steps.max())

    order = _shuffles(keys, sizes, passes, most)
    step = torch.arange(steps, device=sizes.device)
    slot = torch.arange(width, device=sizes.device)
    of_pass = (step // per_pass[:, None]).clamp(max=max(passes - 1, 0))
    position = (step % per_pass[:, None] * batching.batch)[:, :, None] + slot
    mask = (position < sizes[:, None, None]) & (step < own_steps[:, None])[:, :, None]
    flat = of_pass[:, :, None] * most + torch.where(mask, position, 0)
    index = order.flatten(1).gather(1, flat.flatten(1)).view(flat.shape) + starts[:, None, None]
    ragged = bool((own_steps < steps).any())
    return Plan(index.clamp(max=max(len(population.labels) - 1, 0)), mask, ragged)


def _shuffles(keys: Tensor, sizes: Tensor, passes: int, most: int) -> Tensor:
    """For each client and pass a shuffle [k, passes, most] of 0..size-1, followed by padding."""
    sample = torch.arange(most, device=keys.device)
    pass_keys = fold(keys[:, None], torch.arange(max(passes, 1), device=keys.device))
    ranks = fold(pass_keys[:, :, None], sample)
    ranks = torch.where(sample < sizes[:, None, None], ranks, torch.iinfo(torch.int64).max)
    return ranks.argsort(dim=-1, stable=True)
