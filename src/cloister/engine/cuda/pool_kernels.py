"""Max-pooling over 2x2 windows that do not overlap, channels last, as Triton kernels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.engine.cuda.launches import Launch, submit

BLOCK = 1024
_NOWHERE = tl.constexpr(4)


@triton.jit
def _better(new, best, which, PLACE: tl.constexpr):
    wins = (new > best) | (new != new)  # larger, or no number: as torch has it
    return tl.where(wins, new, best), tl.where(wins, PLACE, which)


@triton.jit
def _windows(H, W, C, P, Q, BLOCK: tl.constexpr):
    """The windows of a program, and where the first pixel of each is."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, q, p, n = at % C, at // C % Q, at // C // Q % P, at // C // Q // P
    return at, ((n * H + 2 * p) * W + 2 * q) * C + c


@triton.jit
def _pool(x, y, which, H, W, C, P, Q, COUNT, RELU: tl.constexpr, BLOCK: tl.constexpr):
    at, first = _windows(H, W, C, P, Q, BLOCK)
    known, corner = at < COUNT, x + first
    best = tl.load(corner, mask=known)
    place = tl.zeros((BLOCK,), tl.int8)
    best, place = _better(tl.load(corner + C, mask=known), best, place, 1)
    best, place = _better(tl.load(corner + W * C, mask=known), best, place, 2)
    best, place = _better(tl.load(corner + W * C + C, mask=known), best, place, 3)
    if RELU:  # the gradient goes nowhere where all are below zero
        place = tl.where(best <= 0, _NOWHERE, place)
        best = tl.where(best <= 0, 0.0, best)
    tl.store(y + at, best, mask=known)
    tl.store(which + at, place.to(tl.int8), mask=known)


@triton.jit
def _spread(gy, which, gx, H, W, C, P, Q, COUNT, BLOCK: tl.constexpr):
    at, first = _windows(H, W, C, P, Q, BLOCK)
    known, corner = at < COUNT, gx + first
    g, place = tl.load(gy + at, mask=known), tl.load(which + at, mask=known)
    tl.store(corner, tl.where(place == 0, g, 0.0), mask=known)
    tl.store(corner + C, tl.where(place == 1, g, 0.0), mask=known)
    tl.store(corner + W * C, tl.where(place == 2, g, 0.0), mask=known)
    tl.store(corner + W * C + C, tl.where(place == 3, g, 0.0), mask=known)


def pool(x: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    """The largest pixel of each window of images [N, H, W, C], and which of the four it is; with `relu`, of images of
    which what is below zero was made zero."""
    images, height, width, channels = x.shape
    y = x.new_empty(images, height // 2, width // 2, channels)
    which = torch.empty_like(y, dtype=torch.int8)
    arguments = (x, y, which, height, width, channels, height // 2, width // 2, y.numel(), relu, BLOCK)
    submit(Launch(_pool, (triton.cdiv(y.numel(), BLOCK),), arguments))
    return y, which


def spread(gy: Tensor, which: Tensor, size: tuple[int, int]) -> Tensor:
    """The gradient of `pool`: each number at the pixel that it came from, zero elsewhere."""
    images, tall, broad, channels = gy.shape
    whole = size == (2 * tall, 2 * broad)  # an odd last line is in no window
    gx = (gy.new_empty if whole else gy.new_zeros)(images, *size, channels)
    arguments = (gy, which, gx, *size, channels, tall, broad, gy.numel(), BLOCK)
    submit(Launch(_spread, (triton.cdiv(gy.numel(), BLOCK),), arguments))
    return gx
