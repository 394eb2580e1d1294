"""Standardized inputs: (x - mean) / deviation, where both come from a priced query over the clients' data.

A mean and a variance of private data are a release like any other. What a sample contributes to them is bounded by
declared constants: every number is taken within +-`bound`, so that no sample moves the sums by more than one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cloister.client.preprocessing import Preprocessing
from cloister.core import Tensors
from cloister.errors import CloisterError, Corrupted

STANDARDIZED = ", standardized"
_LEAST_DEVIATION = 0.05
"""In units of the bound: a feature that varies less than this (or than the noise can tell) is not blown up."""


@dataclass(frozen=True)
class InputQuery:
    """A query over all inputs, and what is done with its answer."""

    name: str
    length: int
    vectors: Callable[[Tensor], Tensor]
    """What stored inputs [b, ...] contribute, as vectors [b, length]."""
    receive: Callable[[Tensor, float], None]
    """(noisy mean, deviation of the noise in each of its numbers)"""
    second_moments: bool = False
    """Whether the mean of x x^T is asked for, length * length numbers, and not that of x."""


@dataclass(frozen=True)
class Standardization:
    """Center and scale of every feature: of every number of a vector, of every channel of anything larger.

    They begin as 0 and 1 and are set once, in place, before training: whatever was compiled or captured with them
    reads the new values.
    """

    inner: Preprocessing
    """What happens to stored inputs before."""
    center: Tensor
    scale: Tensor
    bound: float

    @classmethod
    def begin(cls, inner: Preprocessing, stored: Tensor, dtype: torch.dtype, bound: float) -> Standardization:
        """That of inputs which are stored like these [b, ...], which changes nothing yet."""
        like = inner.test(stored, dtype)
        if not like.is_floating_point():
            raise CloisterError(
                f"Expected inputs that are measurements for standardize, found {like.dtype}: leave it out where inputs "
                "are tokens."
            )
        features = like.shape[1] if like.dim() > 1 else 1
        return cls(inner, like.new_zeros(features), like.new_ones(features), bound)

    @property
    def queries(self) -> tuple[InputQuery, ...]:
        """What is asked."""
        return (InputQuery("statistics", self.length, self.moments, self.set_from),)

    @property
    def length(self) -> int:
        """How many numbers the query is about: a mean and a mean square for every feature."""
        return 2 * len(self.center)

    def moments(self, stored: Tensor) -> Tensor:
        """What every sample contributes [b, length]: its features and their squares, together of norm at most 1."""
        x = self.inner.test(stored, self.center.dtype).reshape(len(stored), len(self.center), -1).double()
        x = (torch.nan_to_num(x) / self.bound).clamp(-1, 1)
        return torch.cat([x.mean(2), x.square().mean(2)], 1) / math.sqrt(self.length)

    def set_from(self, mean: Tensor, noise: float) -> None:
        """Center and scale from the (noisy) mean of all moments, whose coordinates have noise of this deviation.

        Everything here is computed from what was released.
        """
        first, second = (mean.double() * math.sqrt(self.length)).to(self.center.device).chunk(2)
        center = first.clamp(-1, 1)
        least = max(_LEAST_DEVIATION**2, 2 * noise * math.sqrt(self.length))
        deviation = (second.clamp(0, 1) - center.square()).clamp(least, 1).sqrt()
        self.center.copy_(center * self.bound)
        self.scale.copy_(deviation * self.bound)

    def released(self) -> Tensors:
        """Center and scale, to be kept."""
        return {"center": self.center.clone(), "scale": self.scale.clone()}

    def load(self, released: Tensors) -> None:
        """Take what was kept."""
        self.center.copy_(released["center"])
        self.scale.copy_(released["scale"])

    def to_json(self) -> dict[str, Any]:
        """Plain values: what was released."""
        return {"center": self.center.tolist(), "scale": self.scale.tolist(), "bound": self.bound}

    @classmethod
    def from_json(cls, inner: Preprocessing, found: dict[str, Any]) -> Standardization:
        """The inverse."""
        try:
            center, scale = (torch.tensor(found[name], dtype=torch.float64) for name in ("center", "scale"))
            bound = float(found["bound"])
        except (KeyError, TypeError, ValueError):
            raise Corrupted(
                "Expected center, scale and bound of a standardization, found others: restore it."
            ) from None
        return cls(inner, center, scale, bound)

    def apply(self, inputs: Tensor) -> Tensor:
        """Inputs [b, ...] standardized."""
        shape = (-1, *[1] * (inputs.dim() - 2)) if inputs.dim() > 1 else (-1,)
        return (inputs - self.center.to(inputs.dtype).view(shape)) / self.scale.to(inputs.dtype).view(shape)

    @property
    def preprocessing(self) -> Preprocessing:
        """What happened before, followed by this."""
        return replace(
            self.inner,
            name=f"{self.inner.name}{STANDARDIZED}",
            settings={**self.inner.settings, "bound": self.bound},
            train=_then(self.inner.train, self),
            test=_then(self.inner.test, self),
        )


def _then(see: Callable[..., Tensor], standardization: Standardization) -> Callable[..., Tensor]:
    return lambda *arguments: standardization.apply(see(*arguments))
