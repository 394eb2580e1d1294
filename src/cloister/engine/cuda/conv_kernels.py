"""Convolutions of many clients at once, each with weights of its own, as Triton kernels.

A convolution is a matrix product of weights and image patches. Two ways to have the patches:

* `convolve` and `weight_gradient` gather each tile of them when it is needed and never write them down. Their images
  are laid out with the channels last, [K, B, H, W, C], so that what is gathered together lies together, and
  their weights are [K, O, R, S, C].
* `patches` writes them down as a matrix [K, C*R*S, B*P*Q] for a product by the vendor's library, and `fold` adds
  a matrix of that shape up into images [K, B, C, H, W], as the gradient needs it.

The gradient with respect to the images, at stride 1, is the convolution of the output's gradient with the weights
turned round. `precision` is Triton's name for how float32 numbers are multiplied ("ieee" is exact float32), or "bf16".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ENOUGH_PROGRAMS = 1056
"""About eight for each multiprocessor of a large device."""


@triton.jit
def _product(left, right, total, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        total = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16), total)
    else:
        total = tl.dot(left, right, total, input_precision=PRECISION)
    return total


@triton.jit
def _convolve(
    x, w, bias, y, B, H, W, C, P, Q, O, PAD,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, BIAS: tl.constexpr, EVEN: tl.constexpr, FLAT: tl.constexpr,
    PRECISION: tl.constexpr, WIDE: tl.constexpr, HIGH: tl.constexpr, DEEP: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    pixel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    o = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    image, place = pixel // (P * Q), pixel % (P * Q)
    top, left = place // Q * STRIDE - PAD, place % Q * STRIDE - PAD
    corner = ((image * H + top) * W + left) * C
    real = pixel < B * P * Q
    x += client * B * H * W * C
    w += client * O * R * S * C
    total = tl.zeros((WIDE, HIGH), tl.float32)
    if FLAT:  # few channels: a step takes filter entries of several places together
        for start in range(0, R * S * C, DEEP):
            k = start + tl.arange(0, DEEP)
            r, s = k // C // S, k // C % S
            row, column = top[:, None] + r[None, :], left[:, None] + s[None, :]
            inside = real[:, None] & (k < R * S * C)[None, :]
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            patch = tl.load(x + corner[:, None] + ((r * W + s) * C + k % C)[None, :], mask=inside, other=0.0)
            known = (o < O)[:, None] & (k < R * S * C)[None, :]
            weight = tl.load(w + (o * (R * S * C))[:, None] + k[None, :], mask=known, other=0.0)
            total = _product(patch, tl.trans(weight), total, PRECISION)
    else:
        blocks = tl.cdiv(C, DEEP)
        for i in range(R * S * blocks):
            tap = i // blocks
            r, s = tap // S, tap % S
            c = i % blocks * DEEP + tl.arange(0, DEEP)
            row, column = top + r, left + s
            inside = (real & (row >= 0) & (row < H) & (column >= 0) & (column < W))[:, None]
            known = (o < O)[:, None]
            if not EVEN:
                inside = inside & (c < C)[None, :]
                known = known & (c < C)[None, :]
            patch = tl.load(x + (corner + (r * W + s) * C)[:, None] + c[None, :], mask=inside, other=0.0)
            weight = tl.load(w + (o * (R * S * C) + tap * C)[:, None] + c[None, :], mask=known, other=0.0)
            total = _product(patch, tl.trans(weight), total, PRECISION)
    if BIAS:
        total += tl.load(bias + client * O + o, mask=o < O, other=0.0)[None, :]
    y += client * B * P * Q * O
    tl.store(y + pixel[:, None] * O + o[None, :], total, mask=real[:, None] & (o < O)[None, :])


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
        total = _product(tl.trans(gradient), patch, total, PRECISION)
    gw += (part * K + client) * O * R * S * C
    known = (o < O)[:, None] & (k < R * S * C)[None, :]
    tl.store(gw + o[:, None] * (R * S * C) + k[None, :], total, mask=known)


@triton.jit
def _patches(
    x, out, B, C,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    k = tl.program_id(1)
    pixel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    c, r, s = k // (R * S), k // S % R, k % S
    image, place = pixel // (P * Q), pixel % (P * Q)
    row, column = place // Q * STRIDE - PAD + r, place % Q * STRIDE - PAD + s
    real = pixel < B * P * Q
    inside = real & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    value = tl.load(x + client * B * C * H * W + ((image * C + c) * H + row) * W + column, mask=inside, other=0.0)
    tl.store(out + (client * C * R * S + k) * (B * P * Q) + pixel, value, mask=real)


@triton.jit
def _fold(
    g, out, B, C,
    H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, S: tl.constexpr, STRIDE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1)
    pixel = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    image, place = pixel // (H * W), pixel % (H * W)
    real = pixel < B * H * W
    total = tl.zeros((WIDE,), tl.float32)
    for r in tl.static_range(R):
        for s in tl.static_range(S):
            row, column = place // W + PAD - r, place % W + PAD - s
            inside = real & (row >= 0) & (column >= 0) & (row % STRIDE == 0) & (column % STRIDE == 0)
            row, column = row // STRIDE, column // STRIDE
            inside = inside & (row < P) & (column < Q)
            line = (client * C + c) * R * S + r * S + s
            total += tl.load(g + line * (B * P * Q) + (image * P + row) * Q + column, mask=inside, other=0.0)
    tl.store(out + client * B * C * H * W + image * C * H * W + c * H * W + place, total, mask=real)


def _out(size: int, kernel: int, stride: int, padding: int) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def _fitting(most: int, count: int) -> int:
    """A power of two that holds `count`, between 16 and `most`."""
    return min(most, max(16, triton.next_power_of_2(count)))


@torch.library.custom_op("cloister::convolve", mutates_args=())
def convolve(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, tile: list[int], precision: str
) -> Tensor:
    """Images [K, B, H, W, C] and weights [K, O, R, S, C] to [K, B, P, Q, O].

    A tile is: pixels, channels and terms of the sum that a program takes at a time; its warps; its stages.
    """
    y = _empty_convolved(x, w, bias, stride, padding, tile, precision)
    clients, images, height, width, channels = x.shape
    _, _, tall, broad, out = y.shape
    wide, high, deep, warps, stages = tile
    flat = channels < 16
    high, deep = _fitting(high, out), _fitting(deep, channels * w.shape[2] * w.shape[3] if flat else channels)
    _convolve[(triton.cdiv(images * tall * broad, wide), triton.cdiv(out, high), clients)](
        x, w, x if bias is None else bias, y, images, height, width, channels, tall, broad, out, padding,
        w.shape[2], w.shape[3], stride, bias is not None, channels % deep == 0, flat, precision, wide, high, deep,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


@convolve.register_fake
def _empty_convolved(
    x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, tile: list[int], precision: str
) -> Tensor:
    tall, broad = (_out(x.shape[2 + i], w.shape[2 + i], stride, padding) for i in (0, 1))
    return x.new_empty(x.shape[0], x.shape[1], tall, broad, w.shape[1])


@torch.library.custom_op("cloister::weight_gradient", mutates_args=())
def weight_gradient(
    gy: Tensor, x: Tensor, kernel: list[int], stride: int, padding: int, tile: list[int], precision: str
) -> Tensor:
    """Gradients [K, B, P, Q, O] and images [K, B, H, W, C] to [K, O, R, S, C].

    The sum over pixels is cut into parts where there would be too few programs to fill the device; the parts are
    added in a fixed order.
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
    gw = gy.new_empty(parts, clients, out, rows, columns, channels)
    _weight_gradient[(tiles, parts, clients)](
        gy, x, gw, images, height, width, channels, tall, broad, out, padding, clients, part,
        rows, columns, stride, padding > 0, precision, wide, high, deep,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return gw.sum(0)


@weight_gradient.register_fake
def _empty_weights(
    gy: Tensor, x: Tensor, kernel: list[int], stride: int, padding: int, tile: list[int], precision: str
) -> Tensor:
    return gy.new_empty(gy.shape[0], gy.shape[4], kernel[0], kernel[1], x.shape[4])


@torch.library.custom_op("cloister::patches", mutates_args=())
def patches(x: Tensor, kernel: list[int], stride: int, padding: int) -> Tensor:
    """Images [K, B, C, H, W] as a matrix of patches [K, C*R*S, B*P*Q]."""
    clients, images, channels, height, width = x.shape
    tall, broad = (_out(x.shape[3 + i], kernel[i], stride, padding) for i in (0, 1))
    out = _empty_patches(x, kernel, stride, padding)
    _patches[(triton.cdiv(images * tall * broad, 1024), channels * kernel[0] * kernel[1], clients)](
        x, out, images, channels, height, width, tall, broad, padding, kernel[0], kernel[1], stride, 1024
    )
    return out


@patches.register_fake
def _empty_patches(x: Tensor, kernel: list[int], stride: int, padding: int) -> Tensor:
    tall, broad = (_out(x.shape[3 + i], kernel[i], stride, padding) for i in (0, 1))
    return x.new_empty(x.shape[0], x.shape[2] * kernel[0] * kernel[1], x.shape[1] * tall * broad)


@torch.library.custom_op("cloister::fold", mutates_args=())
def fold(g: Tensor, images: int, size: list[int], kernel: list[int], stride: int, padding: int) -> Tensor:
    """A matrix [K, C*R*S, B*P*Q] added up into images [K, B, C, H, W]: the transpose of `patches`."""
    out = _empty_folded(g, images, size, kernel, stride, padding)
    clients, _, channels, height, width = out.shape
    tall, broad = (_out(size[i], kernel[i], stride, padding) for i in (0, 1))
    _fold[(triton.cdiv(images * height * width, 1024), channels, clients)](
        g, out, images, channels, height, width, tall, broad, padding, kernel[0], kernel[1], stride, 1024
    )
    return out


@fold.register_fake
def _empty_folded(g: Tensor, images: int, size: list[int], kernel: list[int], stride: int, padding: int) -> Tensor:
    return g.new_empty(g.shape[0], images, g.shape[1] // (kernel[0] * kernel[1]), size[0], size[1])
