"""Convolutions of many clients at once, each with weights of its own, as Triton kernels.

A convolution is a matrix product of weights and image patches. `convolve` and `weight_gradient` gather each tile of
patches when it is needed and never write them down. Images are laid out with the channels last, [K, B, H, W, C], so
that what is gathered together lies together, and weights are [K, O, R, S, C].

The gradient with respect to the images is the convolution of the output's gradient, with `stride` - 1 zeros between its
pixels (`dilation`), with the weights turned round. `precision` is Triton's name for how float32 numbers are multiplied
("ieee" is exact float32), or "bf16"; images may themselves be bfloat16. Sums are float32.

Operations are defined by their schema: `torch.library.custom_op` imports torch's compiler, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from cloister.engine.cuda.launches import Launch, submit

ENOUGH_PROGRAMS = 1056
"""About eight for each multiprocessor of a large device."""


@triton.jit
def product(left, right, total, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        total = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    else:
        total = tl.dot(left.to(tl.float32), right.to(tl.float32), total, input_precision=PRECISION)
    return total


@triton.jit
def _convolve(
    x, w, bias, y, B, H, W, C, P, Q, O, PAD,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr,
    BIAS: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) // (DILATION * DILATION) * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    # Between the pixels of a dilated image are zeros: for outputs that lie `DILATION` apart, the same filter entries
    # meet pixels. A program takes outputs of one such class, from (down, right) on, and only these entries.
    down, right = tl.program_id(0) // DILATION % DILATION, tl.program_id(0) % DILATION
    tall, broad = (P - down + DILATION - 1) // DILATION, (Q - right + DILATION - 1) // DILATION
    real = pixel < B * tall * broad
    image, spot = pixel // (tall * broad), pixel % (tall * broad)
    p, q = spot // broad * DILATION + down, spot % broad * DILATION + right
    top, left = p * STRIDE - PAD, q * STRIDE - PAD
    corner = ((image * H + top) * W + left) * C
    x += client * B * H * W * C
    w += client * O * R * S * C
    total = tl.zeros((WIDE, HIGH), tl.float32)
    if FLAT:  # few channels: a step takes filter entries of several places together
        for start in range(0, R * S * C, DEEP):
            k = start + tl.arange(0, DEEP)
            r, s = k // C // S, k // C % S
            row, column = top[:, None] + r[None, :], left[:, None] + s[None, :]
            inside = real[:, None] & (k < R * S * C)[None, :] & (row >= 0) & (column >= 0)
            if DILATION > 1:
                inside = inside & (row % DILATION == 0) & (column % DILATION == 0)
                row, column = row // DILATION, column // DILATION
                place = ((image[:, None] * H + row) * W + column) * C + (k % C)[None, :]
            else:
                place = corner[:, None] + ((r * W + s) * C + k % C)[None, :]
            patch = tl.load(x + place, mask=inside & (row < H) & (column < W), other=0.0)
            known = (o < O)[:, None] & (k < R * S * C)[None, :]
            weight = tl.load(w + (o * (R * S * C))[:, None] + k[None, :], mask=known, other=0.0)
            total = product(patch, tl.trans(weight), total, PRECISION)
    else:
        blocks = tl.cdiv(C, DEEP)
        first_r, first_s = (PAD + DILATION * R - down) % DILATION, (PAD + DILATION * S - right) % DILATION
        across = (S - first_s + DILATION - 1) // DILATION
        for i in range((R - first_r + DILATION - 1) // DILATION * across * blocks):
            r, s = first_r + i // blocks // across * DILATION, first_s + i // blocks % across * DILATION
            tap = r * S + s
            c = i % blocks * DEEP + tl.arange(0, DEEP)
            row, column = top + r, left + s
            inside = real & (row >= 0) & (column >= 0)
            if DILATION > 1:
                row, column = row // DILATION, column // DILATION
                place = ((image * H + row) * W + column) * C
            else:
                place = corner + (r * W + s) * C
            inside = (inside & (row < H) & (column < W))[:, None]
            known = (o < O)[:, None]
            if not EVEN:
                inside = inside & (c < C)[None, :]
                known = known & (c < C)[None, :]
            patch = tl.load(x + place[:, None] + c[None, :], mask=inside, other=0.0)
            weight = tl.load(w + (o * (R * S * C) + tap * C)[:, None] + c[None, :], mask=known, other=0.0)
            total = product(patch, tl.trans(weight), total, PRECISION)
    if BIAS:
        total += tl.load(bias + client * O + o, mask=o < O, other=0.0)[None, :]
    y += client * B * P * Q * O
    place = (image * P + p) * Q + q
    tl.store(y + place[:, None] * O + o[None, :], total, mask=real[:, None] & (o < O)[None, :])


@triton.jit
def _weight_gradient(
    gy, x, gw, B, H, W, C, P, Q, O, PAD, K, PART,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, FRAMED: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(1)
    across = tl.cdiv(R * S * C, WIDE)
    k = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(0) // across * HIGH + tl.arange(0, HIGH)
    c, r, s = k % C, k // C // S, k // C % S
    offset = (r * W + s) * C + c
    gy += client * B * P * Q * O
    x += client * B * H * W * C
    end = tl.minimum((part + 1) * PART, B * P * Q)
    total = tl.zeros((HIGH, WIDE), tl.float32)
    for start in range(part * PART, end, DEEP):
        pixel = start + tl.arange(0, DEEP)
        image, place = pixel // (P * Q), pixel % (P * Q)
        top, left = place // Q * STRIDE - PAD, place % Q * STRIDE - PAD
        real = (pixel < end)[:, None]
        gradient = tl.load(gy + pixel[:, None] * O + o[None, :], mask=real & (o < O)[None, :], other=0.0)
        inside = real & (k < R * S * C)[None, :]
        if FRAMED:
            row, column = top[:, None] + r[None, :], left[:, None] + s[None, :]
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        corner = ((image * H + top) * W + left) * C
        patch = tl.load(x + corner[:, None] + offset[None, :], mask=inside, other=0.0)
        total = product(tl.trans(gradient), patch, total, PRECISION)
    gw += (part * K + client) * O * R * S * C
    known = (o < O)[:, None] & (k < R * S * C)[None, :]
    tl.store(gw + o[:, None] * (R * S * C) + k[None, :], total, mask=known)


def _fitting(most: int, count: int) -> int:
    """A power of two that holds `count`, between 16 and `most`."""
    return min(most, max(16, triton.next_power_of_2(count)))


def convolve_launch(
    x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, stride: int, padding: int, dilation: int,
    tile: Sequence[int], precision: str,
) -> Launch:  # fmt: skip
    """Images [K, B, H, W, C] and weights [K, O, R, S, C] to y [K, B, P, Q, O].

    A tile is: pixels, channels and terms of the sum that a program takes at a time; its warps; its stages.
    """
    clients, images, height, width, channels = x.shape
    _, _, tall, broad, out = y.shape
    wide, high, deep, warps, stages = tile
    flat = channels < 16
    high, deep = _fitting(high, out), _fitting(deep, channels * w.shape[2] * w.shape[3] if flat else channels)
    arguments = (
        x, w, x if bias is None else bias, y, images, height, width, channels, tall, broad, out, padding,
        w.shape[2], w.shape[3], stride, dilation, bias is not None, channels % deep == 0, flat,
        precision, wide, high, deep,
    )  # fmt: skip
    most = images * triton.cdiv(tall, dilation) * triton.cdiv(broad, dilation)
    grid = (triton.cdiv(most, wide) * dilation**2, triton.cdiv(out, high), clients)
    return Launch(_convolve, grid, arguments, warps, stages)


def weight_gradient_launch(
    gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int, tile: Sequence[int], precision: str
) -> tuple[Launch, Tensor]:
    """Gradients [K, B, P, Q, O] and images [K, B, H, W, C] to [parts, K, O, R, S, C].

    The sum over pixels is cut into parts where there would be too few programs to fill the device.
    """
    clients, images, tall, broad, out = gy.shape
    _, _, height, width, channels = x.shape
    rows, columns = kernel
    wide, high, deep, warps, stages = tile
    entries, pixels = channels * rows * columns, images * tall * broad
    high, wide = _fitting(high, out), _fitting(wide, entries)
    tiles = triton.cdiv(entries, wide) * triton.cdiv(out, high)
    parts = max(1, min(ENOUGH_PROGRAMS // (tiles * clients), pixels // (8 * deep)))
    part = triton.cdiv(triton.cdiv(pixels, parts), deep) * deep
    parts = triton.cdiv(pixels, part)
    gw = gy.new_empty(parts, clients, out, rows, columns, channels, dtype=torch.float32)
    arguments = (
        gy, x, gw, images, height, width, channels, tall, broad, out, padding, clients, part,
        rows, columns, stride, padding > 0, precision, wide, high, deep,
    )  # fmt: skip
    return Launch(_weight_gradient, (tiles, parts, clients), arguments, warps, stages), gw


def _convolve_empty(
    x: Tensor, w: Tensor, bias: Tensor | None, size: Sequence[int], stride: int, padding: int, dilation: int,
    tile: Sequence[int], precision: str,
) -> Tensor:  # fmt: skip
    return x.new_empty(x.shape[0], x.shape[1], size[0], size[1], w.shape[1])


def _convolve_now(
    x: Tensor, w: Tensor, bias: Tensor | None, size: Sequence[int], stride: int, padding: int, dilation: int,
    tile: Sequence[int], precision: str,
) -> Tensor:  # fmt: skip
    y = _convolve_empty(x, w, bias, size, stride, padding, dilation, tile, precision)
    submit(convolve_launch(x, w, bias, y, stride, padding, dilation, tile, precision))
    return y


def _weight_gradient_empty(
    gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int, tile: Sequence[int], precision: str
) -> Tensor:
    shape = (gy.shape[0], gy.shape[4], kernel[0], kernel[1], x.shape[4])
    return gy.new_empty(shape, dtype=torch.float32)


def _weight_gradient_now(
    gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int, tile: Sequence[int], precision: str
) -> Tensor:
    launch, parts = weight_gradient_launch(gy, x, kernel, stride, padding, tile, precision)
    submit(launch)
    return parts.sum(0) if len(parts) > 1 else parts[0]  # added in a fixed order


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")
_LIBRARY.define(
    "convolve(Tensor x, Tensor w, Tensor? bias, int[] size, int stride, int padding, int dilation, "
    "int[] tile, str precision) -> Tensor"
)
_LIBRARY.define(
    "weight_gradient(Tensor gy, Tensor x, int[] kernel, int stride, int padding, int[] tile, str precision) -> Tensor"
)
_LIBRARY.impl("convolve", _convolve_now, "CUDA")
_LIBRARY.impl("weight_gradient", _weight_gradient_now, "CUDA")
torch.library.register_fake("cloister::convolve", _convolve_empty, lib=_LIBRARY)
torch.library.register_fake("cloister::weight_gradient", _weight_gradient_empty, lib=_LIBRARY)
