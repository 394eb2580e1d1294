"""Small models for first steps."""

from __future__ import annotations

import math
from typing import Annotated

from torch import Tensor, nn

from cloister.errors import expect, expect_count, expect_type
from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, expect_images


def logistic(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened input."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def linear_probe(
    shape: Shape, classes: int, bias: Annotated[float, "constant feature that stands for a bias; 0 for none"] = 0.1
) -> nn.Module:
    """Logistic regression on fixed features of length 1: it starts from zero, and its bias is one more small feature.

    Under a clip, a bias of ordinary size would take most of every sample's gradient.
    """
    expect_type("bias", bias, (int, float), "a number", "0.1 is usual")
    expect(0 <= bias < math.inf, "bias >= 0", bias, "0.1 is usual")
    linear = nn.Linear(math.prod(shape) + 1, classes, bias=False)
    nn.init.zeros_(linear.weight)
    return nn.Sequential(nn.Flatten(), _WithConstant(float(bias)), linear)


class _WithConstant(nn.Module):
    """One more feature, which is the same for all samples."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.pad(inputs, (0, 1), value=self.value)


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
