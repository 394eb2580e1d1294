"""The clients' samples in one tensor, sorted by client: of all clients, of one among many, or of none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cloister.errors import expect

STAGED_BYTES = 2**26
"""How much is read from the disk at once, for as many steps as that holds, but for one at least."""


class Stored(Protocol):
    """Samples that lie on the disk (`cloister.data.from_array_folder`)."""

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some rows, whose numbers rise."""

    def release(self) -> None:
        """Give back the memory that looking at inputs and labels took."""


@dataclass(frozen=True)
class Population:
    """The clients' samples: client i owns rows starts[i] to starts[i] + sizes[i].

    `here` are the clients whose part of a round is computed in this process: all of them in a simulation (None), one
    on a node, none at a server.

    Samples may lie on the disk: then `stored` reads those that a round needs, and inputs and labels are maps of all.
    """

    inputs: Tensor
    labels: Tensor
    starts: Tensor
    sizes: Tensor
    here: frozenset[int] | None = None
    stored: Stored | None = None

    def __post_init__(self) -> None:
        ends = self.starts + self.sizes
        apart = bool((self.starts[1:] >= ends[:-1]).all()) and bool((self.sizes >= 0).all())
        inside = not len(ends) or (int(self.starts[0]) >= 0 and int(ends[-1]) <= len(self.labels))
        same = len(self.starts) == len(self.sizes) and len(self.inputs) == len(self.labels)
        expect(
            apart and inside and same, "clients with rows of their own", "overlapping or missing rows", "lay them out"
        )

    @classmethod
    def of_one(cls, inputs: Tensor, labels: Tensor, client: int, clients: int) -> Population:
        """One client's samples, among so many clients whose samples are elsewhere."""
        expect(0 <= client < clients, f"a client from 0 to {clients - 1}", client, "give its number in the federation")
        sizes = torch.zeros(clients, dtype=torch.int64, device=labels.device)
        sizes[client] = len(labels)
        return cls(inputs, labels, sizes.cumsum(0) - sizes, sizes, frozenset({client}))

    @classmethod
    def of_none(cls, inputs: Tensor, labels: Tensor, clients: int) -> Population:
        """No sample at all: a server's view of so many clients. The tensors say of which shape and type samples are."""
        none = torch.zeros(clients, dtype=torch.int64, device=labels.device)
        return cls(inputs[:0], labels[:0], none, none, frozenset())

    @cached_property
    def clients(self) -> int:
        """How many clients there are, those without samples included."""
        return len(self.sizes)

    @cached_property
    def counts(self) -> Tensor:
        """The sizes on the host, where shapes are decided."""
        return self.sizes.cpu()

    def members(self, clients: Tensor) -> Tensor:
        """Which of these clients are computed in this process."""
        if self.here is None:
            return clients
        return clients[torch.tensor([client in self.here for client in clients.tolist()], dtype=torch.bool)]

    def near(self, samples: Tensor, dim: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For every step, which is a dimension of `samples`: inputs, labels, and which rows of these its samples are.

        Only where they lie on the disk, these are others than all: those of the next steps.
        """
        if self.stored is None:
            yield from ((self.inputs, self.labels, rows) for rows in samples.unbind(dim))
            return
        each = samples.numel() // max(samples.shape[dim], 1) * self.inputs[:1].nbytes
        for some in torch.split(samples, max(1, STAGED_BYTES // max(each, 1)), dim):
            rows, places = np.unique(some.numpy(), return_inverse=True)
            inputs, labels = self.stored.read(torch.from_numpy(rows))
            found = torch.from_numpy(places).view(some.shape).unbind(dim)
            yield from ((inputs, labels, place) for place in found)

    def let_go(self) -> None:
        """Inputs and labels were looked at, one part of many: keep no more of them in memory than lies there anyway."""
        if self.stored is not None:
            self.stored.release()

    def to(self, device: torch.device, dtype: torch.dtype) -> Population:
        """The same on another device; inputs that are floating become `dtype`.

        Those that lie on the disk stay there as they are, unless they are needed on another device: batches of them
        become `dtype` when the model sees them.
        """
        if self.stored is not None and device == self.inputs.device:
            return self
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None)
        labels = self.labels.to(device)
        self.let_go()
        return Population(inputs, labels, self.starts.to(device), self.sizes.to(device), self.here)
