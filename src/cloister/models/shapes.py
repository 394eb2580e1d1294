"""The shapes that networks take, and the sizes that follow from them."""

from __future__ import annotations

import math

import torch
from torch import nn

from cloister.errors import CloisterError

Shape = tuple[int, ...]


def expect_images(model: str, shape: Shape, least: int, published: Shape | None = None) -> int:
    """Refuse what is not an image of at least that height and width; return its number of channels."""
    if len(shape) != 3 or shape[0] < 1 or min(shape[1:]) < least:
        paper = f", in its paper {published}" if published else ""
        raise CloisterError(
            f"Expected inputs of shape (channels, height, width) of at least {least}x{least} for the {model}{paper}, "
            f"found {tuple(shape)}: choose the model logistic or mlp."
        )
    return shape[0]


def flat_size(features: nn.Module, shape: Shape) -> int:
    """How many numbers a network makes of one input: found by trying, so that no formula can go out of step."""
    with torch.no_grad():
        return math.prod(features(torch.zeros(1, *shape)).shape)
