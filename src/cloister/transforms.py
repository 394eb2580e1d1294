"""Transforms of a client's update, each with the bound that it leaves on ANY client's contribution."""

from __future__ import annotations

import torch
from torch import Tensor

from cloister.errors import expect_positive
from cloister.joints import Bound, Transform

# Scaling rounds three times, each time by at most half a unit in the last place; this much below the bound absorbs it.
_ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def identity() -> Transform:
    """Leave the update as it is. The bound stays unknown, so no private mechanism will accept it."""
    return Transform("identity", {}, lambda u: u, lambda total: total, lambda bound: bound)


def clip_l2(clip: float) -> Transform:
    """Scale the WHOLE update u to norm at most S: u * min(1, S / ||u||_2).

    Guarantee: the encoded update's L2 norm is at most `clip` for any input without NaN. (An update with NaN
    or infinity never arrives here: the round replaces it by zero.)

    | update                  | encoded                                             |
    |-------------------------|-----------------------------------------------------|
    | zero                    | zero                                                |
    | norm below S            | unchanged                                           |
    | norm above S            | same direction, norm S up to rounding, never above  |
    | norm beyond the dtype   | zero                                                |

    >>> clip_l2(1.0).encode(torch.tensor([3.0, 4.0]))
    tensor([0.6000, 0.8000])
    """
    expect_positive("clip", clip, "choose the norm to which updates are clipped", or_infinite=True)

    def encode(update: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(update, dtype=torch.float64)
        limit = clip * (1 - _ROUNDING[update.dtype])
        # Dividing first keeps every factor in range: limit / norm alone can underflow, and lose its precision.
        return torch.where(norm <= limit, update, update / norm.to(update.dtype) * limit)

    return Transform("clip_l2", {"clip": clip}, encode, lambda total: total, lambda _: Bound(l2=clip))


def chain(*parts: Transform) -> Transform:
    """One after the other on the client; backwards on the server; the bound travels along."""

    def encode(update: Tensor) -> Tensor:
        for part in parts:
            update = part.encode(update)
        return update

    def decode(total: Tensor) -> Tensor:
        for part in reversed(parts):
            total = part.decode(total)
        return total

    def bound(known: Bound) -> Bound:
        for part in parts:
            known = part.bound(known)
        return known

    return Transform("chain", {}, encode, decode, bound, parts)
