"""What a client minimizes: a model as one flat vector, its loss over a mini-batch, and gradients of both kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from cloister.errors import CloisterError, expect


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter of a module lies in the flat vector.

    A client's contribution is a tensor [d]; a cohort's is [K, d]. Names and shapes live here and nowhere else.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """The layout of a module's trainable parameters (frozen ones are constants and stay out).

        >>> Layout.of(nn.Linear(3, 2)).size
        8
        """
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        expect(
            bool(named), "a model with trainable parameters", type(module).__name__, "give it some, or unfreeze them"
        )
        kinds = {p.dtype for p in named.values()}
        if len(kinds) > 1 or not next(iter(kinds)).is_floating_point:
            raise CloisterError(
                f"Expected all trainable parameters to share one floating dtype, found {sorted(map(str, kinds))}: "
                "convert the model with .float() or .double()."
            )
        return cls(tuple(named), tuple(p.shape for p in named.values()))

    @cached_property
    def sizes(self) -> list[int]:
        """How many numbers each parameter has."""
        return [shape.numel() for shape in self.shapes]

    @property
    def size(self) -> int:
        """The number of trainable parameters, d."""
        return sum(self.sizes)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Named tensors as one vector [d]."""
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector [d] as named tensors; the inverse of `flatten`."""
        named = zip(self.names, vector.split_with_sizes(self.sizes), self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in named}

    def pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector [d] cut into one flat piece for each parameter."""
        return vector.split_with_sizes(self.sizes)

    def load(self, module: nn.Module, vector: Tensor) -> nn.Module:
        """Write the vector into the module's parameters."""
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, preprocessing in self.views(vector).items():
                parameters[name].copy_(preprocessing)
        return module


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client. Padding has mask False; `key` feeds what is random in the model."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    count: Tensor  # what a sum is divided by: real samples, or 1 where none is; of a Poisson batch, its expected size
    key: Tensor
    live: Tensor  # whether the client takes this step; if not, nothing changes
    noise: Tensor  # [n] of a step that is private by itself: normal, scaled to its noise multiplier; otherwise [0]


Grad = Callable[..., Callable[..., Any]]
"""As torch.func.grad: `grad(function, has_aux=False)(argument)`, the argument a tensor or a tuple of tensors."""


@dataclass(frozen=True)
class Objective:
    """What is minimized: `loss(w, batch)` is the mean loss of the model with parameters w over real samples.

    `grad` differentiates a scalar function; engines choose the way that suits them. `outputs(w, inputs)` is what the
    model says of samples when it is used, not trained. `per_sample` knows the gradients of single samples.
    """

    layout: Layout
    loss: Callable[[Tensor, Batch], Tensor]
    grad: Grad
    outputs: Callable[[Tensor, Tensor], Tensor]
    per_sample: SampleGradients

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """The gradient [d] of the mean loss over a batch."""
        found: Tensor = self.grad(self.loss)(w, batch)
        return found

    def clipped(
        self, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum [d] of the gradients of a batch's single samples, each clipped as a whole, and their norms [b].

        Where `active` [d] is 0 a gradient counts as zero, in its norm as well. Padding, and a sample whose gradient is
        not finite, count as zero. Guarantee: a sample moves the sum by no more than `clip_norm`.
        """
        return self.per_sample.clipped(self.grad, w, batch, clip_norm, active)

    def clamped(self, w: Tensor, batch: Batch, limit: Tensor | float, active: Tensor | None = None) -> Tensor:
        """The same sum with every coordinate of every gradient kept between -limit and limit instead."""
        return self.per_sample.clamped(self.grad, w, batch, limit, active)


class SampleGradients(Protocol):
    """How the gradients of single samples are had; both methods are pure and can be mapped over clients."""

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: Tensor | float, active: Tensor | None) -> Tensor: ...

    def bytes_for(self, batch_size: int) -> int:
        """About how much memory a batch of one client takes beside what a plain gradient takes."""
