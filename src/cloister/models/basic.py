"""Small models for first steps."""

from __future__ import annotations

import math
from typing import Annotated

from torch import nn

from cloister.errors import expect_count
from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, expect_images


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int, hidden: Annotated[int, "width of the hidden layer"] = 32) -> nn.Module:
    """One hidden layer with ReLU."""
    expect_count("hidden", hidden, "the width of the hidden layer", most=10**6)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(
    shape: Shape,
    classes: int,
    width: Annotated[int, "channels of the first convolution"] = 8,
    activation: ActivationName = "relu",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Two 3x3 convolutions, each followed by 2x2 max-pooling, and a linear layer: for small images."""
    expect_count("width", width, "the number of channels of the first convolution", most=10**4)
    channels = expect_images("cnn", shape, least=4)
    act = activation_layer(activation, scale, temperature, offset)
    _, height, breadth = shape
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        act,
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        act,
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (height // 4) * (breadth // 4), classes),
    )
