"""The clients' samples in one tensor, sorted by client: of all clients, of one among many, or of none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cloister.errors import expect


@dataclass(frozen=True)
class Population:
    """The clients' samples: client i owns rows starts[i] to starts[i] + sizes[i].

    `here` are the clients whose part of a round is computed in this process: all of them in a simulation (None), one
    on a node, none at a server.
    """

    inputs: Tensor
    labels: Tensor
    starts: Tensor
    sizes: Tensor
    here: frozenset[int] | None = None

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

    def to(self, device: torch.device, dtype: torch.dtype) -> Population:
        """The same on another device; inputs that are floating become `dtype`."""
        inputs = self.inputs.to(device, dtype if self.inputs.is_floating_point() else None)
        return Population(inputs, self.labels.to(device), self.starts.to(device), self.sizes.to(device), self.here)
