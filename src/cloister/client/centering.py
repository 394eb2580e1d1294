"""Centered inputs: of unit length, without their common part, and of unit length again.

    x <- x / ||x||;  x <- (x - m) / ||x - m||
    x <- x - sum_i (1 - sqrt(level / l_i)) <x, u_i> u_i;  x <- x / ||x||

m is a private mean of the inputs. What is left of features such as a scattering transform's is much shorter than what
they have in common, so that scaling it up again makes gradients point to what tells samples apart. The second step
does the same to directions u_i in which inputs vary most: l_i are the eigenvalues of a private matrix of second moments
that stand above `level`, the largest that its noise alone would have (for d numbers, each of deviation s: s sqrt(2 d)).

Both are sums of what has norm at most 1, whatever the data: no bound has to be declared. All else is computed from what
was released.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloister.client.preprocessing import Preprocessing
from cloister.client.standardization import InputQuery
from cloister.core import Tensors
from cloister.errors import CloisterError, Corrupted, expect

CENTERED = ", centered"
MOST_DIRECTIONS = 64
"""In which inputs are made to vary less: more than stand above the noise at budgets of a few epsilon."""
MOST_NUMBERS = 20_000
"""Of an input whose second moments are asked for: their matrix has the square of it."""
_LEAST_LEVEL = 1e-4


@dataclass(frozen=True)
class Centering:
    """The mean, directions, and how much of each is taken away. They begin as zeros and are set once, in place."""

    inner: Preprocessing
    """What happens to stored inputs before."""
    shape: tuple[int, ...]
    """Of one input."""
    mean: Tensor
    axes: Tensor
    """Directions [d, k], unused ones zero."""
    removed: Tensor
    """What part of an input's component along each of them is taken away [k]."""
    rank: int | None = None
    """Of the mean as a matrix (first dimension of an input, all others), to which it is smoothed."""
    decorrelates: bool = False

    @classmethod
    def begin(
        cls, inner: Preprocessing, stored: Tensor, dtype: torch.dtype, rank: int | None, decorrelates: bool
    ) -> Centering:
        """That of inputs which are stored like these [b, ...], which takes nothing away yet."""
        like = inner.test(stored, dtype)
        if not like.is_floating_point() or like.dim() < 2:
            raise CloisterError(
                f"Expected inputs of several measurements for center, found {like.dtype} of shape "
                f"{tuple(like.shape[1:])}: leave it out where inputs are tokens or single numbers."
            )
        shape = tuple(like.shape[1:])
        numbers = math.prod(shape)
        matrix = min(shape[0], numbers // shape[0])
        if rank is not None:
            expect(rank <= matrix, f"center_rank of at most {matrix}, for inputs of shape {shape}", rank, "lower it")
        expect(
            not decorrelates or numbers <= MOST_NUMBERS,
            f"at most {MOST_NUMBERS:,} numbers in an input for decorrelate",
            numbers,
            "leave it out, or pool the features first",
        )
        directions = min(MOST_DIRECTIONS, numbers) if decorrelates else 0
        zeros = like.new_zeros
        return cls(inner, shape, zeros(numbers), zeros(numbers, directions), zeros(directions), rank, decorrelates)

    @property
    def queries(self) -> tuple[InputQuery, ...]:
        """What is asked, one after the other."""
        numbers = len(self.mean)
        found = (InputQuery("mean", numbers, lambda stored: self._unit(stored), self._set_mean),)
        if not self.decorrelates:
            return found
        second = InputQuery("second moments", numbers, self._centered, self._set_directions, second_moments=True)
        return (*found, second)

    def _unit(self, stored: Tensor) -> Tensor:
        return unit(self.inner.test(stored, self.mean.dtype).flatten(1))

    def _centered(self, stored: Tensor) -> Tensor:
        return unit(self._unit(stored) - self.mean)

    def _set_mean(self, mean: Tensor, noise: float) -> None:
        found = mean.to(self.mean)
        if self.rank is not None:
            found = _smoothed(found.view(self.shape[0], -1), self.rank).flatten()
        self.mean.copy_(found)

    def _set_directions(self, moments: Tensor, noise: float) -> None:
        matrix = moments.to(self.axes).view(len(self.mean), -1)
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        level = max(noise * math.sqrt(2 * len(values)), _LEAST_LEVEL)
        kept = min(int((values > level).sum()), self.axes.shape[1])
        if kept:
            self.axes[:, :kept] = vectors[:, -kept:]
            self.removed[:kept] = 1 - (level / values[-kept:]).sqrt()

    def released(self) -> Tensors:
        """Mean and directions, to be kept."""
        return {"mean": self.mean.clone(), "axes": self.axes.clone(), "removed": self.removed.clone()}

    def load(self, released: Tensors) -> None:
        """Take what was kept."""
        for name in ("mean", "axes", "removed"):
            getattr(self, name).copy_(released[name])

    def apply(self, inputs: Tensor) -> Tensor:
        """Inputs [b, ...] centered, in their shape."""
        found = unit(unit(inputs.flatten(1)) - self.mean.to(inputs.dtype))
        if self.decorrelates:
            axes = self.axes.to(inputs.dtype)
            found = unit(found - (found @ axes * self.removed.to(inputs.dtype)) @ axes.T)
        return found.view(inputs.shape)

    @property
    def preprocessing(self) -> Preprocessing:
        """What happened before, followed by this."""
        return replace(
            self.inner,
            name=f"{self.inner.name}{CENTERED}",
            settings={**self.inner.settings, "center_rank": self.rank, "decorrelates": self.decorrelates},
            train=_then(self.inner.train, self),
            test=_then(self.inner.test, self),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values: what was released, as float32 in base64, directions that are used alone."""
        used = int((self.removed > 0).sum())
        axes = self.axes[:, :used].contiguous()
        return {
            "shape": list(self.shape),
            "rank": self.rank,
            "decorrelates": self.decorrelates,
            "mean": _packed(self.mean),
            "axes": _packed(axes),
            "removed": _packed(self.removed[:used]),
        }

    @classmethod
    def from_json(cls, inner: Preprocessing, found: dict[str, Any]) -> Centering:
        """The inverse."""
        try:
            mean, axes, removed = (_unpacked(found[name]) for name in ("mean", "axes", "removed"))
            shape = tuple(int(side) for side in found["shape"])
            if math.prod(shape) != len(mean):
                raise ValueError(shape)
            return cls(
                inner, shape, mean, axes.view(len(mean), len(removed)), removed, found["rank"], found["decorrelates"]
            )
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise Corrupted("Expected mean, axes and removed of a centering, found others: restore it.") from None


def unit(vectors: Tensor) -> Tensor:
    """Vectors [b, d] of length 1; zeros stay zeros.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / length.clamp(min=torch.finfo(vectors.dtype).tiny ** 0.5)


def _smoothed(matrix: Tensor, rank: int) -> Tensor:
    """The matrix of this rank that is nearest: of a noisy one, most of the noise is in the rest."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    smoothed: Tensor = (left[:, :rank] * values[:rank]) @ right[:rank]
    return smoothed


def _packed(numbers: Tensor) -> str:
    return base64.b64encode(numbers.detach().float().cpu().numpy().astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32))


def _then(see: Callable[..., Tensor], centering: Centering) -> Callable[..., Tensor]:
    return lambda *arguments: centering.apply(see(*arguments))
