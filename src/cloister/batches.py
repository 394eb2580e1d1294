"""From clients and their samples to mini-batches, for many clients at once.

All samples lie in one tensor, sorted by client; a batch is a list of indices into it. Which samples make
which batch depends on the client's key alone, never on who else is in the cohort or how it is chunked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def counts(self) -> Tensor:
        """The sizes on the host, where shapes are decided."""
        return self.sizes.cpu()

    def to(self, device: torch.device, dtype: torch.dtype) -> Population:
        """The same on another device; inputs that are floating become `dtype`."""
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None)
        return Population(inputs, self.labels.to(device), self.starts.to(device), self.sizes.to(device))


def rows_of(samples: Tensor, rows: Tensor) -> Tensor:
    """samples[rows]; on a CPU by copies of whole rows, which are several times as fast."""
    if samples.is_cuda:
        return samples[rows]
    return samples.index_select(0, rows.flatten()).view(*rows.shape, *samples.shape[1:])


class Shape(NamedTuple):
    """The common shape of some clients' batches. It follows from their sizes, before anything is computed."""

    most: int  # samples of the largest client, or more
    passes: int  # how often a client's samples are shuffled
    steps: int
    ragged: bool  # whether some client may have fewer steps, so that steps without a real sample occur


def exactly(count: int) -> int:
    """No padding beyond the largest client."""
    return count


def rounded_up(count: int, finer: int = 0) -> int:
    """The next of 1 to 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: few shapes, at most a quarter too large.

    >>> [rounded_up(n) for n in (3, 8, 9, 17, 33)]
    [3, 8, 10, 20, 40]
    """
    unit = 1 << max((count - 1).bit_length() - 3 - finer, 0)
    return -(-count // unit) * unit


def shape_of(sizes: Tensor, batching: Batching, up: Callable[[int], int] = exactly) -> Shape:
    """The shape that holds clients of these sizes (a tensor on the host), padded by `up`."""
    if batching.lots:  # lots are as wide as they turn out
        own = [batching.steps_for(size) for size in sizes.tolist()]
        return Shape(batching.batch, 1, max(own), min(own) < max(own))
    largest = max(int(sizes.max()), 1)
    pieces = up(-(-largest // batching.batch))
    most = pieces * batching.batch if pieces > 1 else min(up(largest), batching.batch)
    if batching.epochs is not None:
        steps = batching.epochs * pieces if int(sizes.max()) else 0
        own_pieces = -(-int(sizes.min()) // batching.batch)
        return Shape(most, batching.epochs, steps, own_pieces < pieces)
    assert batching.steps is not None
    some = sizes[sizes > 0]
    if not len(some):
        return Shape(most, 1, 0, False)
    fewest = -(-int(some.min()) // batching.batch)
    passes = min(up(-(-batching.steps // fewest)), batching.steps)
    return Shape(most, passes, batching.steps, len(some) < len(sizes))


class Plan(NamedTuple):
    """Batches of k clients: sample indices and which of them are real, [k, steps, batch]."""

    samples: Tensor
    mask: Tensor


def plan(population: Population, batching: Batching, shape: Shape, clients: Tensor, keys: Tensor) -> Plan:
    """The batches of the given clients, padded to a common shape that is large enough for them.

    A client's samples are shuffled anew for every pass and cut into pieces of `batching.batch`; the last
    piece of a pass may be short. Padding repeats a sample of the same client, so that nothing a client
    computes ever depends on anybody else's data. Nothing here waits for the device.
    """
    starts, sizes = population.starts[clients], population.sizes[clients]
    pieces = (sizes + batching.batch - 1) // batching.batch
    per_pass = pieces.clamp(min=1)
    own_steps = pieces * batching.epochs if batching.epochs is not None else (sizes > 0) * shape.steps

    order = _shuffles(keys, sizes, shape.passes, shape.most)
    step = torch.arange(shape.steps, device=sizes.device)
    slot = torch.arange(min(batching.batch, shape.most), device=sizes.device)
    of_pass = (step // per_pass[:, None]).clamp(max=shape.passes - 1)
    position = (step % per_pass[:, None] * batching.batch)[:, :, None] + slot
    mask = (position < sizes[:, None, None]) & (step < own_steps[:, None])[:, :, None]
    flat = of_pass[:, :, None] * shape.most + torch.where(mask, position, 0)
    index = order.flatten(1).gather(1, flat.flatten(1)).view(flat.shape) + starts[:, None, None]
    return Plan(index.clamp(max=max(len(population.labels) - 1, 0)), mask)


def _shuffles(keys: Tensor, sizes: Tensor, passes: int, most: int) -> Tensor:
    """For each client and pass a shuffle [k, passes, most] of 0..size-1, followed by padding."""
    sample = torch.arange(most, device=keys.device)
    pass_keys = fold(keys[:, None], torch.arange(passes, device=keys.device))
    ranks = fold(pass_keys[:, :, None], sample)
    ranks = torch.where(sample < sizes[:, None, None], ranks, torch.iinfo(torch.int64).max)
    return ranks.argsort(dim=-1, stable=True)
