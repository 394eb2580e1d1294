"""Images that lie in memory pixel by pixel (channels last), which convolutions and pooling on a CPU like best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cloister.random.transformed import is_transformed


class PixelGradients(TorchFunctionMode):
    """Gradients of pooled images that are laid out pixel by pixel come that way, too.

    Flattening turns them around, and pooling would turn around its whole input, several times, to go with them.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is F.max_pool2d and isinstance(found, Tensor) and found.requires_grad and is_pixelwise(found):
            hook: Callable[..., object] = found.register_hook
            hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
        return found


def is_pixelwise(images: Tensor) -> bool:
    """Whether images [b, c, h, w] lie in memory pixel by pixel (channels last), on a CPU and outside of transforms."""
    if images.dim() != 4 or images.device.type != "cpu" or is_transformed(images):
        return False
    _, channels, height, width = images.shape
    return images.stride() == (channels * height * width, 1, width * channels, channels)
