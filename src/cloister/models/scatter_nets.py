"""Small networks on scattering features (`cloister.models.scatter` computes them).

Tramèr & Boneh, "Differentially private learning needs better features (or much more data)", ICLR 2021. The features
are normalized sample by sample, in 27 groups of channels and without scale and shift: nothing to learn, no statistics.

PFL (arXiv 2501.14453) prints the linear model without a normalization (normalization = "none"). What its authors ran
normalizes with scales and shifts that are learned: `pfl_scatter_linear` and `pfl_scatter_cnn`.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

from torch import nn

from cloister.errors import CloisterError, expect_one_of
from cloister.models.activations import ActivationName, Offset, Scale, Temperature, activation_layer
from cloister.models.shapes import Shape, flat_size

GRAY, COLOR = 81, 243
"""Channels of the features of gray and of color images: 81 for every channel of the image."""


GROUPS = 27
"""In which features are normalized: a group is 3 channels of a gray image's features, 9 of a color image's."""

Normalization = Literal["groups", "none"]
NormalizationName = Annotated[
    Normalization, "how scattering features are normalized: in 27 groups, or not at all (none), as PFL prints it"
]


def scatter_linear(shape: Shape, classes: int, normalization: NormalizationName = "groups") -> nn.Module:
    """Logistic regression on normalized features: 39,700 parameters for (81, 7, 7), 155,530 for (243, 8, 8).

    With normalization = "none" on the features as they are, as PFL prints its SN+Linear.
    """
    expect_one_of("normalization", normalization, get_args(Normalization))
    layers = [_normalized("scatter_linear", shape), nn.Flatten(), nn.Linear(math.prod(shape), classes)]
    return nn.Sequential(*layers[normalization == "none" :])


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


def pfl_scatter_linear(shape: Shape, classes: int) -> nn.Module:
    """The linear model of the PFL paper's own code: 47,638 parameters for (81, 7, 7), 186,634 for (243, 8, 8).

    arXiv 2501.14453. The 27 groups are those of `scatter_linear`; every single feature has a scale and a shift.
    """
    _expect_features("pfl_scatter_linear", shape)
    size = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.GroupNorm(GROUPS, size), nn.Linear(size, classes))


def pfl_scatter_cnn(
    shape: Shape,
    classes: int,
    activation: ActivationName = "tanh",
    scale: Scale = 2.0,
    temperature: Temperature = 2.0,
    offset: Offset = 1.0,
) -> nn.Module:
    """The convolutions of the PFL paper's own code: 20,940 parameters for (81, 7, 7), 180,016 for (243, 8, 8).

    arXiv 2501.14453. Every channel has a scale and a shift, and max-pooling follows each convolution.
    """
    _expect_features("pfl_scatter_cnn", shape, least=5 if shape[:1] == (GRAY,) else 4)
    norm, act = nn.GroupNorm(GROUPS, shape[0]), activation_layer(activation, scale, temperature, offset)
    gray = shape[0] == GRAY
    width, channels = (16, 32) if gray else (64, 64)
    pool = nn.MaxPool2d(2, stride=1 if gray else 2)
    convolutions = nn.Sequential(
        norm,
        nn.Conv2d(shape[0], width, 3, stride=2 if gray else 1, padding=1),
        act,
        pool,
        nn.Conv2d(width, channels, 3, padding=1),
        act,
        pool,
        nn.Flatten(),
    )
    size = flat_size(convolutions, shape)
    if gray:
        return nn.Sequential(*convolutions, nn.Linear(size, 32), act, nn.Linear(32, classes))
    return nn.Sequential(*convolutions, nn.Linear(size, classes))


def _normalized(model: str, shape: Shape) -> nn.Module:
    _expect_features(model, shape)
    return nn.GroupNorm(GROUPS, shape[0], affine=False)


def _expect_features(model: str, shape: Shape, least: int = 2) -> None:
    if len(shape) != 3 or shape[0] not in (GRAY, COLOR) or min(shape[1:]) < least:
        raise CloisterError(
            f"Expected scattering features of shape (81, height, width) of gray or (243, height, width) of color "
            f"images for the {model}, such as (81, 7, 7) or (243, 8, 8), found {tuple(shape)}: compute them with "
            "cloister.models.scatter."
        )
