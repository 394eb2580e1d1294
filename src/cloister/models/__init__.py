"""Models by name, and what makes a model fit for federated training."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from cloister.errors import CloisterError, expect_count
from cloister.models.norms import group_norm

Shape = tuple[int, ...]


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int, hidden: int = 32) -> nn.Module:
    """One hidden layer with ReLU."""
    expect_count("hidden", hidden, "the width of the hidden layer")
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(shape: Shape, classes: int, width: int = 8) -> nn.Module:
    """Two 3x3 convolutions with ReLU, each followed by 2x2 max-pooling, and a linear layer: for small images."""
    expect_count("width", width, "the number of channels of the first convolution")
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise CloisterError(
            f"Expected inputs of shape (channels, height, width) of at least 4x4 for the cnn, found {shape}: "
            "choose the model logistic or mlp."
        )
    channels, height, breadth = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), classes),
    )


CATALOGUE: dict[str, Callable[..., nn.Module]] = {"logistic": logistic, "mlp": mlp, "cnn": cnn}

__all__ = ["CATALOGUE", "cnn", "group_norm", "logistic", "mlp"]
