"""Views: how stored inputs become what a model sees, on the device, inside the training step.

Images stay uint8 in one tensor on the training device. Normalising and augmenting them happens where they are
used, per client and sample and step, from keys: so no data loader stands in the way, engines agree, and what
one sample becomes does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cloister.errors import expect, expect_count
from cloister.streams import fold, uniform


@dataclass(frozen=True)
class View:
    """`train(inputs, key, dtype)` may be random, from the key; `test(inputs, dtype)` is not."""

    name: str
    settings: Mapping[str, Any]
    train: Callable[[Tensor, Tensor, torch.dtype], Tensor]
    test: Callable[[Tensor, torch.dtype], Tensor]


def plain() -> View:
    """Inputs as they are; floating ones in the model's dtype."""

    def see(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        return inputs.to(dtype) if inputs.is_floating_point() else inputs

    return View("plain", {}, lambda inputs, key, dtype: see(inputs, dtype), see)


def images(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    pad: int = 0,
    size: int | None = None,
    flip: bool = False,
    flip_vertically: bool = False,
) -> View:
    """uint8 images [b, c, h, w] as (x/255 - mean) / std.

    In training each is first padded with black by `pad` on every side and cropped at random to `size` (its own
    size by default), and flipped with probability one half, as asked; in testing it is cropped in the middle
    and not flipped.
    """
    expect(len(mean) == len(std) and len(mean) > 0, "as many deviations as means", (mean, std), "one per channel")
    expect(min(std) > 0, "deviations > 0", std, "use 1 to leave the scale")
    expect_count("pad", pad, "0 switches cropping off", least=0)

    def normal(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        shape = (len(mean), 1, 1)
        centre = torch.tensor(mean, dtype=dtype, device=inputs.device).view(shape)
        scale = torch.tensor(std, dtype=dtype, device=inputs.device).view(shape)
        return (inputs.to(dtype) / 255 - centre) / scale

    def crop(inputs: Tensor, offsets: Tensor) -> Tensor:
        """The window of each image that begins at its offset (row, column) in the padded image."""
        out = size or inputs.shape[-1]
        padded = torch.nn.functional.pad(inputs, (pad, pad, pad, pad))
        rows = offsets[:, 0, None] + torch.arange(out, device=inputs.device)
        columns = offsets[:, 1, None] + torch.arange(out, device=inputs.device)
        sample = torch.arange(len(inputs), device=inputs.device)[:, None, None, None]
        channel = torch.arange(inputs.shape[1], device=inputs.device)[None, :, None, None]
        return padded[sample, channel, rows[:, None, :, None], columns[:, None, None, :]]

    def room(inputs: Tensor) -> int:
        """How many places a window can begin at, minus one."""
        return inputs.shape[-1] + 2 * pad - (size or inputs.shape[-1])

    def train(inputs: Tensor, key: Tensor, dtype: torch.dtype) -> Tensor:
        if pad:
            draws = uniform(fold(key, -2), (len(inputs), 2))
            inputs = crop(inputs, (draws * (room(inputs) + 1)).long())
        for wanted, axis, position in ((flip, -1, -3), (flip_vertically, -2, -4)):
            if wanted:
                coin = uniform(fold(key, position), (len(inputs),)) < 0.5
                inputs = torch.where(coin[:, None, None, None], inputs.flip(axis), inputs)
        return normal(inputs, dtype)

    def test(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        if size is not None and pad:
            middle = torch.full((len(inputs), 2), room(inputs) // 2, device=inputs.device)
            inputs = crop(inputs, middle)
        return normal(inputs, dtype)

    settings = {
        "mean": list(mean),
        "std": list(std),
        "pad": pad,
        "size": size,
        "flip": flip,
        "flip_vertically": flip_vertically,
    }
    return View("images", settings, train, test)
