"""Clipping: what makes a client's contribution bounded."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.errors import expect_positive, expect_share

# Scaling rounds four times, each time by at most half a unit in the last place; this much below the bound absorbs it.
_ROUNDING = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def identity() -> Transform:
    """Leave the update as it is. The bound stays unknown, so no private mechanism will accept it."""
    return Transform("identity", {}, lambda update, context: update, lambda known, layout: known, bounds_distance=True)


def clip_l2(clip_norm: float) -> Transform:
    """Scale the WHOLE update u to norm at most S: u * min(1, S / ||u||_2).

    Guarantee: the encoded update's L2 norm is at most `clip_norm` for any input without NaN. (An update with NaN
    or infinity never arrives here: the round replaces it by zero.)

    | update                  | encoded                                             |
    |-------------------------|-----------------------------------------------------|
    | zero                    | zero                                                |
    | norm below S            | unchanged                                           |
    | norm above S            | same direction, norm S up to rounding, never above  |
    | norm beyond the dtype   | the same                                            |
    """
    expect_positive("clip_norm", clip_norm, "choose the norm to which updates are clipped", or_infinite=True)
    return Transform(
        "clip_l2",
        {"clip_norm": clip_norm},
        lambda update, context: clip_to_norm(update, clip_norm),
        lambda known, layout: Sensitivity(clip_norm, known.length),
        stays_finite=True,
        clipped=lambda update, context: _factor(update, torch.tensor(clip_norm, dtype=torch.float64)),
        clip_error=lambda update, context: clip_to_norm(update, clip_norm) - update,
    )


def normalize_l2(clip_norm: float) -> Transform:
    """Scale every update to norm S, shorter ones up: u * S / ||u||_2. Zero stays zero.

    Guarantee: that of `clip_l2`. Where noise is large, clients whose updates are short lose least by it.
    """
    expect_positive("clip_norm", clip_norm, "choose the norm to which updates are scaled")

    def clipped(update: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        norm = _measured(update)[2]
        limit = torch.tensor(clip_norm, dtype=torch.float64).to(norm)
        return norm, limit, torch.where(norm > 0, limit / norm, 1.0)

    return Transform(
        "normalize_l2",
        {"clip_norm": clip_norm},
        lambda update, context: scale_to_norm(update, clip_norm),
        lambda known, layout: Sensitivity(clip_norm, known.length),
        stays_finite=True,
        clipped=clipped,
        clip_error=lambda update, context: scale_to_norm(update, clip_norm) - update,
    )


def scale_to_norm(update: Tensor, norm: float) -> Tensor:
    """The vector, scaled to this norm, up to rounding and never above; zero stays zero.

    >>> scale_to_norm(torch.tensor([0.03, 0.04]), 1.0)
    tensor([0.6000, 0.8000])
    """
    if not update.shape[0]:
        return update
    direction, short, found = _measured(_raised(update))
    factor = (_safely_below(norm, update) * short).clamp(max=torch.finfo(direction.dtype).max)
    return torch.where(found > 0, (direction * factor.to(direction.dtype)).to(update.dtype), update)


def _raised(update: Tensor) -> Tensor:
    """The same direction, tiny updates a power of two longer: a norm next to zero has few digits in float32, and what
    is divided by it could come out half as long again."""
    if update.dtype == torch.float64:
        return update
    update = update.float()
    return torch.where(torch.linalg.vector_norm(update, torch.inf) < 2.0**-60, update * 2.0**64, update)


def _factor(update: Tensor, limit: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of an update, the norm S that it is clipped to, and the factor min(1, S / norm) of that."""
    norm = _measured(update)[2]
    limit = limit.to(norm)
    return norm, limit, torch.where(norm <= limit, 1.0, limit / norm)


def clip_to_norm(update: Tensor, limit: float) -> Tensor:
    """The vector, scaled to norm `limit` where it is longer.

    >>> clip_to_norm(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    if not update.shape[0]:
        return update
    limit = _safely_below(limit, update)
    direction, short, norm = _measured(update)
    factor = (limit * short).clamp(max=torch.finfo(direction.dtype).max)
    return torch.where(norm <= limit, update, (direction * factor.to(direction.dtype)).to(update.dtype))


_FAR = 256.0
"""A norm is taken for so many times less than the largest number, at most: everything in between stays in range."""


def _measured(update: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The update's direction, as a vector of some norm from 1 to 256 sqrt(d) or so, one over that norm, and the
    update's own norm (both in float64); of any update at all.

    Squares of what float32 holds neither overflow nor vanish in float64. Those of float64 do, so the largest number is
    taken out of them first. What is shorter than float32 has too few numbers for its own factors.
    """
    if update.dtype == torch.float64:
        top = torch.linalg.vector_norm(update, torch.inf)
        length = torch.linalg.vector_norm(update / top)
        norm = torch.where(top == 0, 0.0, top * length)
    else:
        update = update.float()
        norm = torch.linalg.vector_norm(update, dtype=torch.float64)
        top, length = norm, torch.ones_like(norm)
    divisor = norm.clamp(max=torch.finfo(update.dtype).max / _FAR)
    return update / divisor.to(update.dtype), divisor / top / length, norm


def _safely_below(limit: float, update: Tensor) -> float:
    """So far below a limit that no rounding exceeds it: of factors and products, of a sum of so many squares in
    float64, and of numbers so small that only their distance is bounded, and not the ratio."""
    size, kind = update.shape[0], torch.finfo(update.dtype)
    inside = kind if update.dtype == torch.float64 else torch.finfo(torch.float32)
    smallest = kind.tiny * kind.eps + _FAR * inside.tiny * inside.eps
    return max(limit * (1 - _ROUNDING[update.dtype] - size * 2.0**-54) - math.sqrt(size) * smallest, 0.0)


def clip_each_tensor(clip_norm: float) -> Transform:
    """Clip every tensor of the model by itself, and take the whole for one of norm `clip_norm`: a published mistake.

    With L tensors the whole update has norm up to sqrt(L) * clip. This is for replication: the noise is scaled to
    `clip_norm`, as it was published, and the price is that of the norm as it is.
    """
    expect_positive("clip_norm", clip_norm, "choose the norm to which tensors are clipped")

    def encode(update: Tensor, context: Context) -> Tensor:
        return torch.cat([clip_to_norm(piece, clip_norm) for piece in context.objective.layout.pieces(update)])

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        return Sensitivity(clip_norm * math.sqrt(len(layout.names)), known.length, assumed_l2=clip_norm)

    def clipped(update: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Every tensor has a factor of its own; that of the whole is by how much its norm shrinks."""
        norm, limit, _ = _factor(update, torch.tensor(clip_norm, dtype=torch.float64))
        after = _measured(encode(update, context))[2]
        return norm, limit, torch.where(norm > 0, after / norm, 1.0).clamp(max=1.0)

    return Transform(
        "clip_each_tensor",
        {"clip_norm": clip_norm},
        encode,
        sensitivity,
        clipped=clipped,
        clip_error=lambda update, context: encode(update, context) - update,
    )


def adaptive_clip(clip_norm: float, quantile: float, clip_lr: float, bit_weight: float) -> Transform:
    """Clip to a norm S that follows a quantile of the updates' norms (Andrew et al. 2021), found out privately.

    A client sends u/S within norm 1 and, beside it, (b - 1/2) * bit_weight, where b says whether its update was within
    S. Guarantee: the message's norm is at most sqrt(1 + bit_weight^2/4), whatever S is, so that one Gaussian release
    pays for both. From the noisy share of clients within S follows the next S, which is told to everyone:
    S <- S exp(-clip_lr (share - quantile)), with the share kept between 0 and 1 and S within
    a factor of a million of where it began.
    """
    expect_positive("clip_norm", clip_norm, "the norm to start from")
    expect_share("quantile", quantile, "0.5 clips half of the updates")
    expect_positive("clip_lr", clip_lr, "0.2 is usual")
    expect_positive("bit_weight", bit_weight, "how much of the noise's room the count takes")

    def encode(update: Tensor, context: Context) -> Tensor:
        now, most = context.broadcast["clip_norm"], _safely_below(1.0, update)
        direction, short, norm = _measured(update)
        bit = ((norm <= now).to(update.dtype) - 0.5) * (bit_weight * (1 - _ROUNDING[update.dtype]))
        # Dividing a huge update by a small S could exceed all numbers; beyond S only its direction is needed.
        beyond = (direction * (most * short).to(direction.dtype)).to(update.dtype)
        return torch.cat([torch.where(norm <= now * most, update / _usable(now, update), beyond), bit[None]])

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        now = context.broadcast["clip_norm"]
        share = (total[-1].double() / bit_weight / context.expected + 0.5).clamp(0, 1)
        following = now * torch.exp(-clip_lr * (share - quantile))
        return total[:-1] * _usable(now, total), {"clip_norm": following.clamp(clip_norm * 1e-6, clip_norm * 1e6)}

    def clip_error(update: Tensor, context: Context) -> Tensor:
        return encode(update, context)[:-1] * _usable(context.broadcast["clip_norm"], update) - update

    settings = {"clip_norm": clip_norm, "quantile": quantile, "clip_lr": clip_lr, "bit_weight": bit_weight}
    return Transform(
        "adaptive_clip",
        settings,
        encode,
        lambda known, layout: Sensitivity(math.sqrt(1 + bit_weight**2 / 4), _one_more(known.length)),
        decode,
        init=lambda w: {"clip_norm": torch.tensor(clip_norm, dtype=torch.float64, device=w.device)},
        broadcast=lambda streams, round, context, state: {"clip_norm": state["clip_norm"]},
        clipped=lambda update, context: _factor(update, context.broadcast["clip_norm"]),
        clip_error=clip_error,
    )


def _one_more(length: int | None) -> int | None:
    return None if length is None else length + 1


def _usable(clip_norm: Tensor, like: Tensor) -> Tensor:
    """The clip as a number of that type: neither zero nor infinite."""
    kind = torch.finfo(like.dtype)
    return clip_norm.clamp(kind.tiny, kind.max).to(like.dtype)
