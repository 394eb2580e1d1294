"""A model as one flat vector, and back.

A client's contribution is a tensor [d]; a cohort's is [K, d]. Names and shapes live here and nowhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect


def hash_of(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """SHA-256 over names, types, shapes and bytes, and over a text that belongs to them."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter of a module lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """The layout of a module's trainable parameters (frozen ones are constants and stay out).

        >>> Layout.of(nn.Linear(3, 2)).size
        8
        """
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        expect(bool(named), "a model with trainable parameters", type(module).__name__, "unfreeze some of them")
        kinds = {p.dtype for p in named.values()}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            raise CloisterError(
                f"Expected all trainable parameters to share one floating dtype, found {sorted(map(str, kinds))}: "
                "convert the model with .float() or .double()."
            )
        return cls(tuple(named), tuple(p.shape for p in named.values()))

    @property
    def size(self) -> int:
        """The number of trainable parameters, d."""
        return sum(shape.numel() for shape in self.shapes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Named tensors as one vector [d]."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector [d] as named tensors; the inverse of `flatten`."""
        named = zip(self.names, self.pieces(vector), self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in named}

    def pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector [d] cut into one flat piece for each parameter."""
        return torch.split(vector, [shape.numel() for shape in self.shapes])

    def load(self, module: nn.Module, vector: Tensor) -> nn.Module:
        """Write the vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, view in self.views(vector).items():
                parameters[name].copy_(view)
        return module
