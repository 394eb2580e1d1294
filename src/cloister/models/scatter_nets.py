"""Small networks on scattering features (`cloister.models.scatter` computes them).

Tramèr & Boneh, "Differentially private learning needs better features (or much more data)", ICLR 2021. The features
are normalized sample by sample, in 27 groups of channels and without scale and shift: nothing to learn, no statistics.
"""

from __future__ import annotations

import math

from torch import nn

from cloister.errors import CloisterError
from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, flat_size

GRAY, COLOR = 81, 243
"""Channels of the features of gray and of color images: 81 for every channel of the image."""


def scatter_linear(shape: Shape, classes: int) -> nn.Module:
    """Logistic regression on normalized features: 39,700 parameters for (81, 7, 7), 155,530 for (243, 8, 8)."""
    return nn.Sequential(_normalized("scatter_linear", shape), nn.Flatten(), nn.Linear(math.prod(shape), classes))


def scatter_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "tanh",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """Two convolutions on normalized features: 33,066 parameters for (81, 7, 7), 187,210 for (243, 8, 8), 10 classes.

    As in the paper, gray images have the MNIST layers (a stride, and a dense layer of 32), color images those for
    CIFAR (64 channels and max-pooling).
    """
    norm = _normalized("scatter_cnn", shape)
    act = activation_layer(activation, scale, temperature, offset)
    if shape[0] == GRAY:
        convolutions = nn.Sequential(
            norm, nn.Conv2d(GRAY, 16, 3, stride=2, padding=1), act, nn.Conv2d(16, 32, 3, padding=1), act, nn.Flatten()
        )
        return nn.Sequential(*convolutions, nn.Linear(flat_size(convolutions, shape), 32), act, nn.Linear(32, classes))
    convolutions = nn.Sequential(
        norm,
        nn.Conv2d(COLOR, 64, 3, padding=1),
        act,
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        act,
        nn.Flatten(),
    )
    return nn.Sequential(*convolutions, nn.Linear(flat_size(convolutions, shape), classes))


def _normalized(model: str, shape: Shape) -> nn.Module:
    if len(shape) != 3 or shape[0] not in (GRAY, COLOR) or min(shape[1:]) < 2:
        raise CloisterError(
            f"Expected scattering features of shape (81, height, width) of gray or (243, height, width) of color "
            f"images for the {model}, such as (81, 7, 7) or (243, 8, 8), found {tuple(shape)}: compute them with "
            "cloister.models.scatter."
        )
    return nn.GroupNorm(27, shape[0], affine=False)
