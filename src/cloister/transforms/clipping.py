"""Clipping: what makes a client's contribution bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cloister.errors import expect_positive, expect_share
from cloister.joints import Bound, Here, State, Transform
from cloister.params import Layout

# Scaling rounds three times, each time by at most half a unit in the last place; this much below the bound absorbs it.
_ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def identity() -> Transform:
    """Leave the update as it is. The bound stays unknown, so no private mechanism will accept it."""
    return Transform("identity", {}, lambda update, here: update, lambda bound, layout: bound)


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
    """
    expect_positive("clip", clip, "choose the norm to which updates are clipped", or_infinite=True)
    return Transform(
        "clip_l2", {"clip": clip}, lambda update, here: within(update, clip), lambda known, layout: Bound(clip)
    )


def within(update: Tensor, limit: float) -> Tensor:
    """The vector, scaled to norm `limit` where it is longer.

    >>> within(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    norm = torch.linalg.vector_norm(update, dtype=torch.float64)
    limit = limit * (1 - _ROUNDING[update.dtype])
    # Dividing first keeps every factor in range: limit / norm alone can underflow, and lose its precision.
    return torch.where(norm <= limit, update, update / norm.to(update.dtype) * limit)


def clip_each_tensor(clip: float) -> Transform:
    """Clip every tensor of the model by itself, and take the whole for one of norm `clip`: a published mistake.

    With L tensors the whole update has norm up to sqrt(L) * clip. This is for replication: the noise is scaled to
    `clip`, as it was published, and the price is that of the norm as it is.
    """
    expect_positive("clip", clip, "choose the norm to which tensors are clipped")

    def encode(update: Tensor, here: Here) -> Tensor:
        return torch.cat([within(piece, clip) for piece in here.problem.layout.pieces(update)])

    def bound(known: Bound, layout: Layout) -> Bound:
        return Bound(clip * math.sqrt(len(layout.names)), taken_for=clip)

    return Transform("clip_each_tensor", {"clip": clip}, encode, bound)


def adaptive_clip(clip: float, quantile: float, clip_lr: float, bit_weight: float) -> Transform:
    """Clip to a norm S that follows a quantile of the updates' norms (Andrew et al. 2021), found out privately.

    A client sends u/S within norm 1 and, beside it, (b - 1/2) * bit_weight, where b says whether its update was within
    S. Guarantee: the message's norm is at most sqrt(1 + bit_weight^2/4), whatever S is, so that one Gaussian release
    pays for both. From the noisy share of clients within S follows the next S, which is told to everyone:
    S <- S exp(-clip_lr (share - quantile)), with the share kept between 0 and 1 and S within
    a factor of a million of where it began.
    """
    expect_positive("clip", clip, "the norm to start from")
    expect_share("quantile", quantile, "0.5 clips half of the updates")
    expect_positive("clip_lr", clip_lr, "0.2 is usual")
    expect_positive("bit_weight", bit_weight, "how much of the noise's room the count takes")

    def encode(update: Tensor, here: Here) -> Tensor:
        now = here.said["clip"]
        norm = torch.linalg.vector_norm(update, dtype=torch.float64)
        bit = ((norm <= now).to(update.dtype) - 0.5) * (bit_weight * (1 - _ROUNDING[update.dtype]))
        return torch.cat([within(update / now.to(update.dtype), 1.0), bit[None]])

    def decode(total: Tensor, here: Here, state: State) -> tuple[Tensor, State]:
        now = here.said["clip"]
        share = (total[-1].double() / bit_weight / here.expected + 0.5).clamp(0, 1)
        following = now * torch.exp(-clip_lr * (share - quantile))
        return total[:-1] * now.to(total.dtype), {"clip": following.clamp(clip * 1e-6, clip * 1e6)}

    settings = {"clip": clip, "quantile": quantile, "clip_lr": clip_lr, "bit_weight": bit_weight}
    return Transform(
        "adaptive_clip",
        settings,
        encode,
        lambda known, layout: Bound(math.sqrt(1 + bit_weight**2 / 4)),
        decode,
        init=lambda w: {"clip": torch.tensor(clip, dtype=torch.float64, device=w.device)},
        announce=lambda streams, round, here, state: {"clip": state["clip"]},
    )
