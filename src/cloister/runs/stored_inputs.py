"""A model with its preprocessing inside: a module that takes inputs as they are stored, and gives one tensor.

It is written with plain modules and constants, so that it can be exported.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cloister.client.losses import main_output
from cloister.client.preprocessing import Preprocessing


class WithPreprocessing(nn.Module):
    """Preprocessing, the model, and the one tensor that its answer is read from."""

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, dtype: torch.dtype) -> None:
        super().__init__()
        self.preprocessing = _module_of(preprocessing, dtype)
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs of stored inputs."""
        return main_output(self.model(self.preprocessing(inputs)))


def _module_of(preprocessing: Preprocessing, dtype: torch.dtype) -> nn.Module:
    """What `Preprocessing.test` does, as a module."""
    if preprocessing.name == "plain":
        return _Plain(dtype)
    if preprocessing.name == "images":
        return _Images(preprocessing, dtype)
    return _Own(preprocessing, dtype)


class _Plain(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.dtype) if inputs.is_floating_point() else inputs


class _Own(_Plain):
    def __init__(self, preprocessing: Preprocessing, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.test = preprocessing.test

    def forward(self, inputs: Tensor) -> Tensor:
        return self.test(inputs, self.dtype)


class _Images(nn.Module):
    """(x/255 - mean) / std of the middle of padded images."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocessing: Preprocessing, dtype: torch.dtype) -> None:
        super().__init__()
        settings = preprocessing.settings
        self.pad, self.size, self.dtype = int(settings["pad"]), settings["size"], dtype
        for name in ("mean", "std"):
            constant = torch.tensor(settings[name], dtype=dtype).view(-1, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.size:
            height, width = inputs.shape[-2:]
            top, left = (int(0.4999 * (side + 2 * self.pad - self.size + 1)) for side in (height, width))
            padded = nn.functional.pad(inputs, (self.pad,) * 4)
            inputs = padded[..., top : top + self.size, left : left + self.size]
        return (inputs.to(self.dtype) / 255 - self.mean) / self.std
