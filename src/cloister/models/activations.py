"""What stands between the layers: one choice by name, the same for every network."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import torch
from torch import Tensor, nn

from cloister.errors import MOST, expect, expect_one_of, expect_positive, nearest

Activation = Literal["relu", "tanh", "tempered"]
ActivationName = Annotated[Activation, "relu, tanh or tempered (scale / (1 + exp(-temperature z)) - offset)"]
Scale = Annotated[float, "height of the tempered sigmoid"]
Temperature = Annotated[float, "steepness of the tempered sigmoid"]
Offset = Annotated[float, "what is subtracted from the tempered sigmoid"]


class TemperedSigmoid(nn.Module):
    """scale / (1 + exp(-temperature z)) - offset: bounded, so that gradients stay near the clipping norm.

    Papernot, Thakurta, Song, Chien & Erlingsson, "Tempered sigmoid activations for deep learning with differential
    privacy", AAAI 2021. At the default values it is tanh.

    >>> TemperedSigmoid(scale=2.0, temperature=2.0, offset=1.0)(torch.zeros(1)).tolist()
    [0.0]
    """

    def __init__(self, scale: float, temperature: float, offset: float) -> None:
        super().__init__()
        expect_positive("scale", scale, "it is the height of the tempered sigmoid, and 2 gives tanh")
        expect_positive("temperature", temperature, "it is the steepness of the tempered sigmoid, and 2 gives tanh")
        small = isinstance(offset, (int, float)) and abs(offset) <= MOST
        expect(small, "offset to be a number", offset, "it is subtracted from the tempered sigmoid, and 1 gives tanh")
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, z: Tensor) -> Tensor:
        """The activation of every entry."""
        return self.scale * torch.sigmoid(self.temperature * z) - self.offset

    def extra_repr(self) -> str:
        """The three numbers, for whoever prints the model."""
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


def activation_layer(activation: Activation, scale: float, temperature: float, offset: float) -> nn.Module:
    """The layer of that name. It holds no state, so one instance may stand in many places of a network."""
    known = get_args(Activation)
    expect_one_of("activation", activation, known, nearest(str(activation), known))
    if activation == "tempered":
        return TemperedSigmoid(scale, temperature, offset)
    return nn.ReLU() if activation == "relu" else nn.Tanh()
