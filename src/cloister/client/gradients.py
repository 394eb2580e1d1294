"""What a step of local training follows: the gradient of the batch's loss, or something made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cloister.core import Batch, Objective, Settings
from cloister.errors import expect_not_negative, expect_positive


@dataclass(frozen=True)
class Gradient:
    """`of(objective, w, start, batch) -> [d]`, where `start` is the model at the start of the round."""

    name: str
    settings: Settings
    of: Callable[[Objective, Tensor, Tensor, Batch], Tensor] = field(compare=False)


def plain() -> Gradient:
    """The gradient of the mean loss over the batch."""
    return Gradient("plain", {}, lambda objective, w, start, batch: objective.gradient(w, batch))


def blur(strength: float, radius: float) -> Gradient:
    """BLUR: beyond the clipping radius S the client is pulled back, g + strength * 1{||w - w0|| > S} (w - w0).

    The norm is that of the whole model. This is the gradient of f + strength/2 max(0, ||w - w0||^2 - S^2). It does not
    keep the update within S: clipping is needed as before.
    """
    expect_not_negative("blur_lambda", strength, "0 switches the regularizer off")
    expect_positive("clip_norm", radius, "the regularizer acts beyond it", or_infinite=True)

    def of(objective: Objective, w: Tensor, start: Tensor, batch: Batch) -> Tensor:
        moved = w - start
        outside = torch.linalg.vector_norm(moved) > radius
        return torch.addcmul(objective.gradient(w, batch), moved, outside.to(w.dtype), value=strength)

    return Gradient("blur", {"strength": strength, "radius": radius}, of)


def proximal(strength: float) -> Gradient:
    """FedProx: g + strength (w - w0), everywhere."""
    expect_not_negative("proximal", strength, "0 switches it off")

    def of(objective: Objective, w: Tensor, start: Tensor, batch: Batch) -> Tensor:
        return objective.gradient(w, batch) + strength * (w - start)

    return Gradient("proximal", {"strength": strength}, of)


_TINY = 1e-12  # a gradient of zero has no direction, and moves nothing


def sam(radius: float, adaptive: bool = False) -> Gradient:
    """SAM: the gradient where the loss is worst nearby, at w + e with the same batch.

    Plain: e = radius g / ||g||. Adaptive (ASAM, Kwon et al. 2021): e = radius w^2 g / || |w| g ||, elementwise. Norms
    are those of the whole model.
    """
    expect_positive("rho", radius, "how far to look for the worst place")

    def of(objective: Objective, w: Tensor, start: Tensor, batch: Batch) -> Tensor:
        g = objective.gradient(w, batch)
        slope = w * g if adaptive else g
        uphill = radius / (torch.linalg.vector_norm(slope) + _TINY) * slope
        return objective.gradient(w + (w * uphill if adaptive else uphill), batch)

    return Gradient("sam", {"radius": radius, "adaptive": adaptive}, of)
