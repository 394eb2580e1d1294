"""Preprocessing: how stored inputs become what a model sees, on the device, inside the training step.

Images stay uint8 in one tensor on the training device. Normalizing and augmenting them happens where they are
used, per client and sample and step, from keys: so no data loader stands in the way, engines agree, and what
one sample becomes does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cloister.errors import expect, expect_count, expect_share
from cloister.random.streams import fold, uniform


@dataclass(frozen=True)
class Preprocessing:
    """`train(inputs, key, dtype)` may be random, from the key; `test(inputs, dtype)` is not."""

    name: str
    settings: Mapping[str, Any]
    train: Callable[[Tensor, Tensor, torch.dtype], Tensor]
    test: Callable[[Tensor, torch.dtype], Tensor]


def gray(images: Tensor) -> Tensor:
    """uint8 images [b, 3, h, w] whose channels are all the luma of ITU-R BT.601, 0.299 R + 0.587 G + 0.114 B.

    In whole numbers of 2^-16, rounded, as image libraries compute it: the same bits on every device.
    """
    whole = images.to(torch.int32)
    luma: Tensor = (whole[:, :1] * 19595 + whole[:, 1:2] * 38470 + whole[:, 2:] * 7471 + (1 << 15)) >> 16
    return luma.to(images.dtype).expand_as(images)


def plain() -> Preprocessing:
    """Inputs as they are; floating ones in the model's dtype."""

    def see(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        return inputs.to(dtype) if inputs.is_floating_point() else inputs

    return Preprocessing("plain", {}, lambda inputs, key, dtype: see(inputs, dtype), see)


def images(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    pad: int = 0,
    size: int | None = None,
    crop: bool = True,
    flip: bool = False,
    flip_vertically: bool = False,
    grayscale: float = 0.0,
) -> Preprocessing:
    """uint8 images [b, c, h, w] as (x/255 - mean) / std.

    Each is first padded with black by `pad` on every side and cut to `size` (a square; its own shape by default):
    in training at random, if `crop`, else in the middle. In training it is also flipped with probability one
    half, as asked, and made gray with the probability `grayscale`; in testing never.
    """
    expect(len(mean) == len(std) and len(mean) > 0, "as many deviations as means", (mean, std), "one per channel")
    expect(min(std) > 0, "deviations > 0", std, "use 1 to leave the scale")
    expect_count("pad", pad, "0 adds no frame", least=0)
    expect_share(
        "grayscale", grayscale, "the probability with which an image is made gray; 0.1 is usual", zero=True, one=True
    )
    if size is not None:
        expect_count("size", size, "the side of what the model sees")

    @cache  # sent to a device once, not in every step
    def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device).view(-1, 1, 1)

    def normal(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        channels = inputs.shape[1]
        expect(channels == len(mean), f"images of {len(mean)} channels", channels, "give a mean for each channel")
        center, scale = constant(mean, dtype, inputs.device), constant(std, dtype, inputs.device)
        return (inputs.to(dtype) / 255 - center) / scale

    def window(inputs: Tensor, place: Tensor) -> Tensor:
        """What is cut out of each padded image; place [b, 2] in [0, 1) says how far down and how far right."""
        height, width = inputs.shape[-2:]
        tall, wide = size or height, size or width
        down, right = height + 2 * pad - tall, width + 2 * pad - wide
        expect(min(down, right) >= 0, f"a size of at most {min(height, width) + 2 * pad}", size, "pad more")
        padded = torch.nn.functional.pad(inputs, (pad, pad, pad, pad))
        rows = (place[:, 0, None] * (down + 1)).long() + torch.arange(tall, device=inputs.device)
        columns = (place[:, 1, None] * (right + 1)).long() + torch.arange(wide, device=inputs.device)
        sample = torch.arange(len(inputs), device=inputs.device)[:, None, None, None]
        channel = torch.arange(inputs.shape[1], device=inputs.device)[None, :, None, None]
        return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def middle(inputs: Tensor) -> Tensor:
        return window(inputs, torch.full((len(inputs), 2), 0.4999, device=inputs.device)) if size else inputs

    def train(inputs: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        random = crop and (pad or size)
        inputs = window(inputs, uniform(fold(key, -2), (len(inputs), 2))) if random else middle(inputs)
        for wanted, axis, position in ((flip, -1, -3), (flip_vertically, -2, -4)):
            if wanted:
                coin = uniform(fold(key, position), (len(inputs),)) < 0.5
                inputs = torch.where(coin[:, None, None, None], inputs.flip(axis), inputs)
        if grayscale and inputs.shape[1] == 3:  # an image of one channel is gray already
            coin = uniform(fold(key, -5), (len(inputs),)) < grayscale
            inputs = torch.where(coin[:, None, None, None], gray(inputs), inputs)
        return normal(inputs, dtype)

    settings = {
        "mean": list(mean),
        "std": list(std),
        "pad": pad,
        "size": size,
        "crop": crop,
        "flip": flip,
        "flip_vertically": flip_vertically,
        **({"grayscale": grayscale} if grayscale else {}),
    }
    return Preprocessing("images", settings, train, lambda inputs, dtype: normal(middle(inputs), dtype))
