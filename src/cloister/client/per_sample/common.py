"""What both ways to the gradients of single samples share: the model as they see it, and how a gradient is clipped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from cloister.core import Batch, Layout


class Losses(Protocol):
    """A model and its loss: one number for each sample."""

    def __call__(
        self, parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor, key: Tensor, slot: Tensor | None = None
    ) -> Tensor:
        """The losses [b] of samples that were seen; `slot` is the place in its batch of a sample that comes alone."""


@dataclass(frozen=True)
class Model:
    """What is differentiated: `see(batch, dtype)` makes of a batch what the model takes."""

    layout: Layout
    dtype: torch.dtype
    see: Callable[[Batch, torch.dtype], Tensor]
    losses: Losses


_BLOCK = 64
"""How many squares are added up in the model's own dtype, at most."""


def rounding(like: Tensor) -> float:
    """How far below its bound, relative to it, a gradient is scaled so that no rounding takes it above.

    A sum of 64 squares, added in any order, can lack 64 halves of a unit in the last place, and so its root a quarter
    of 64 units. Four more are for the root, the factor and its products, two for the factors of a matrix product.
    """
    return (_BLOCK // 4 + 4) * torch.finfo(like.dtype).eps + 2 * grain(like)


def grain(like: Tensor) -> float:
    """The unit in the last place of what a matrix product multiplies, relative to it."""
    coarse = like.is_cuda and like.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return 2.0**-10 if coarse else torch.finfo(like.dtype).eps


def clipping(norms: Tensor, mask: Tensor, clip_norm: Tensor | float, like: Tensor) -> tuple[Tensor, Tensor]:
    """What the gradients of samples with these norms (float64) are multiplied by, and the norms as they are told.

    Zero for padding, for a norm that is not finite or beyond the model's dtype, and for one so large that its factor
    would be too small for the dtype: such a factor has lost its precision, and could be rounded up.
    """
    limits = torch.finfo(like.dtype)
    norms = (norms * norms + lost(like.shape[0], like.dtype)).sqrt()  # a norm of nothing may be of something tiny
    limit = (clip_norm.double() if isinstance(clip_norm, Tensor) else clip_norm) * (1 - rounding(like))
    most = limit / limits.tiny
    most = most.clamp(max=limits.max) if isinstance(most, Tensor) else min(most, limits.max)
    counts = mask & (norms < most)  # which NaN is not
    factors = torch.where(counts, (limit / norms).clamp(max=1), 0.0)
    return factors.to(like.dtype), torch.where(counts, norms, 0.0).to(like.dtype)


def squared_norms(rows: Tensor) -> Tensor:
    """Of each row [b, n], in float64.

    In float32 a long sum can come out too small. A copy in float64 takes longer than all the rest, so that pieces of a
    row are added up as they are, and only these sums in float64.
    """
    size = 1 if rows.dtype == torch.float64 else _piece(rows.shape[1])
    if size > 1:
        rows = torch.linalg.vector_norm(rows.reshape(len(rows), -1, size), dim=2)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norms * norms


@cache
def _piece(length: int) -> int:
    """The size of equal pieces of a row, or 1 where it is short or has none."""
    if length <= _BLOCK:
        return 1
    return next((size for size in range(_BLOCK, _BLOCK // 4, -1) if length % size == 0), 1)


def lost(numbers: int, dtype: torch.dtype) -> float:
    """What a sum of so many squares can lack at most because squares below the smallest number are zero."""
    return numbers * torch.finfo(dtype).tiny


def finite(tensor: Tensor) -> Tensor:
    """Zero for what is not: a factor of zero does not silence infinity."""
    return tensor.nan_to_num(0.0, 0.0, 0.0)


def largest(rows: Tensor) -> Tensor:
    """The largest entry of each row, by magnitude; NaN where there is one."""
    found: Tensor = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    return found


def clamped_sum(rows: Tensor, counts: Tensor, limit: Tensor | float) -> Tensor:
    """The sum of the rows that count, each entry within the limit."""
    rows = finite(rows)
    if isinstance(limit, Tensor):  # for type checkers, torch has two functions of this name
        return (rows.clamp(-limit, limit) * counts[:, None]).sum(0)
    return (rows.clamp(-limit, limit) * counts[:, None]).sum(0)


def exactly(like: Tensor) -> AbstractContextManager[object]:
    """What is computed of gradients is computed in their own dtype, also where the model runs in a coarser one."""
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
