"""Images of strokes, digits and letters, sheared upright: how much a hand slants differs and says little.

As in the experiments of LeCun, Bottou, Bengio & Haffner, "Gradient-based learning applied to document recognition",
Proceedings of the IEEE 1998: rows are moved sideways until the ink's columns and rows are uncorrelated,

    new(x, y) = old(x + s (y - mean y), y),    s = cov(x, y) / var(y), cut at -1 and 1.

What an image becomes depends on that image alone, so that nothing here costs anything.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cloister.data.raw import RawData, Samples
from cloister.errors import expect

_ROWS = 4096


def deskewed(raw: RawData) -> RawData:
    """The same with every image [1, h, w] upright."""
    channels = raw.train.inputs.shape[1]
    expect(channels == 1, "images of one channel (gray) beside deskew = true", channels, "leave deskew out")

    def upright_part(part: Samples) -> Samples:
        pieces = [
            upright(torch.from_numpy(np.array(part.inputs[at : at + _ROWS]))).numpy()
            for at in range(0, len(part), _ROWS)
        ]
        return Samples(np.concatenate(pieces) if pieces else part.inputs, part.labels, part.owners)

    return replace(raw, train=upright_part(raw.train), test=upright_part(raw.test))


def upright(images: Tensor) -> Tensor:
    """uint8 images [n, 1, h, w], each sheared about the center of mass of its ink: of what is not as its border is."""
    pixels = images[:, 0].double()
    border = torch.cat([pixels[:, 0], pixels[:, -1], pixels[:, :, 0], pixels[:, :, -1]], 1)
    paper = border.median(1).values[:, None, None]
    drawn = pixels - paper
    ink = drawn.abs()
    total = ink.sum((1, 2)).clamp(min=1e-9)
    rows, columns = (torch.arange(size, dtype=torch.float64) for size in ink.shape[1:])
    down = rows - (ink.sum(2) @ rows / total)[:, None]
    across = columns - (ink.sum(1) @ columns / total)[:, None]
    spread = (ink.sum(2) * down**2).sum(1)
    together = torch.einsum("nhw,nh,nw->n", ink, down, across)
    slant = (together / spread.clamp(min=1e-9)).clamp(-1, 1)  # none where there is one row of ink, or no ink
    source = columns + (slant[:, None] * down)[:, :, None]  # where what comes to each place was
    left = source.floor()
    part = source - left
    moved = _at(drawn, left.long()) * (1 - part) + _at(drawn, left.long() + 1) * part
    return (paper + moved).round().to(torch.uint8)[:, None]


def _at(drawn: Tensor, places: Tensor) -> Tensor:
    """What rows have at these places; nothing outside."""
    width = drawn.shape[2]
    inside = (places >= 0) & (places < width)
    return torch.where(inside, drawn.gather(2, places.clamp(0, width - 1)), 0.0)
