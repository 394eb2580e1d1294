"""The ways to convolve many clients at once, each with weights of its own: images [K, B, C, H, W], weights
[K, O, C, R, S]. They differ in speed, by shape, and in the last bits.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad

Way = Callable[..., Tensor]


def ways(operation: str, precision: str, *arguments: Any) -> dict[str, Way]:
    """All that can compute an operation on such arguments."""
    first, second = arguments[:2]
    found: dict[str, Way] = {"grouped": getattr(Grouped, operation)}
    kernel = arguments[2] if operation == "weight_gradient" else tuple(second.shape[3:])
    channels = (first if operation == "forward" else second).shape[2]
    pixels = first.numel() // first.shape[2]
    if pixels * channels * math.prod(kernel) * first.element_size() <= _MOST_PATCHES:
        found["unfold"] = getattr(Unfold, operation)
    convolution = operation != "input_gradient" or arguments[3] == 1
    if _triton(first) and convolution and kernel[0] == kernel[1]:
        for how, tile in _TILES[precision, operation == "weight_gradient"]:
            found[f"{how} tiles {'x'.join(map(str, tile))}"] = getattr(Tiles(tile, how), operation)
    return found


class Grouped:
    """One convolution of K groups."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        flat = None if bias is None else bias.flatten()
        y = torch.conv2d(_side_by_side(x), w.flatten(0, 1), flat, stride, padding, groups=len(x))
        return _apart(y, len(x))

    @staticmethod
    def input_gradient(gy: Tensor, w: Tensor, size: tuple[int, int], stride: int, padding: int) -> Tensor:
        clients, images, channels = len(gy), gy.shape[1], w.shape[2]
        shape = (images, clients * channels, *size)
        g = grad.conv2d_input(shape, w.flatten(0, 1), _side_by_side(gy), stride, padding, groups=clients)
        return _apart(g, clients)

    @staticmethod
    def weight_gradient(gy: Tensor, x: Tensor, kernel: tuple[int, int], stride: int, padding: int) -> Tensor:
        clients, channels, out = len(gy), x.shape[2], gy.shape[2]
        shape = (clients * out, channels, *kernel)
        g = grad.conv2d_weight(_side_by_side(x), shape, _side_by_side(gy), stride, padding, groups=clients)
        return g.unflatten(0, (clients, out))


def _side_by_side(x: Tensor) -> Tensor:
    """[K, B, C, ...] as [B, K * C, ...]."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, clients: int) -> Tensor:
    return x.unflatten(1, (clients, -1)).transpose(0, 1)


class Unfold:
    """Image patches as a matrix [K, C*R*S, B*P*Q], and products of matrices."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        patches, flat = _patches(x, w.shape[3:], stride, padding), w.flatten(2)
        y = flat @ patches if bias is None else flat @ patches + bias[:, :, None]
        tall = (x.shape[3] + 2 * padding - w.shape[3]) // stride + 1
        return y.unflatten(2, (x.shape[1], tall, -1)).transpose(1, 2)

    @staticmethod
    def input_gradient(gy: Tensor, w: Tensor, size: tuple[int, int], stride: int, padding: int) -> Tensor:
        clients, images, out, tall, broad = gy.shape
        g = w.flatten(2).transpose(1, 2) @ gy.transpose(1, 2).reshape(clients, out, -1)
        kernel = (w.shape[3], w.shape[4])
        if _triton(g):
            return torch.ops.cloister.fold(g, images, list(size), list(kernel), stride, padding)
        columns = g.unflatten(2, (images, tall * broad)).transpose(1, 2).flatten(0, 1)
        return F.fold(columns, size, kernel, padding=padding, stride=stride).unflatten(0, (clients, images))

    @staticmethod
    def weight_gradient(gy: Tensor, x: Tensor, kernel: tuple[int, int], stride: int, padding: int) -> Tensor:
        patches = _patches(x, kernel, stride, padding)
        g = gy.transpose(1, 2).reshape(len(gy), gy.shape[2], -1) @ patches.transpose(1, 2)
        return g.unflatten(2, (x.shape[2], *kernel))


def _patches(x: Tensor, kernel: Any, stride: int, padding: int) -> Tensor:
    if _triton(x):
        made: Tensor = torch.ops.cloister.patches(x.contiguous(), list(kernel), stride, padding)
        return made
    x = F.pad(x, (padding,) * 4) if padding else x
    windows = x.unfold(3, kernel[0], stride).unfold(4, kernel[1], stride)  # [K, B, C, P, Q, R, S]
    return windows.permute(0, 2, 5, 6, 1, 3, 4).flatten(4).flatten(1, 3)


def _triton(tensor: Tensor) -> bool:
    """Whether the kernels take this tensor."""
    if tensor.is_cuda and tensor.dtype == torch.float32 and importlib.util.find_spec("triton"):
        importlib.import_module("cloister.engine.cuda.conv_kernels")
        return True
    return False


@dataclass(frozen=True)
class Tiles:
    """A kernel that gathers patches as it multiplies; channels last."""

    tile: tuple[int, ...]
    precision: str

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        bias = None if bias is None else bias.contiguous()
        y = torch.ops.cloister.convolve(_last(x), _last(w), bias, stride, padding, list(self.tile), self.precision)
        return _first(y)

    def input_gradient(self, gy: Tensor, w: Tensor, size: tuple[int, int], stride: int, padding: int) -> Tensor:
        turned = w.flip(3, 4).permute(0, 2, 3, 4, 1).contiguous()  # only at stride 1 is this a convolution again
        frame = w.shape[3] - 1 - padding
        return _first(torch.ops.cloister.convolve(_last(gy), turned, None, 1, frame, list(self.tile), self.precision))

    def weight_gradient(self, gy: Tensor, x: Tensor, kernel: tuple[int, int], stride: int, padding: int) -> Tensor:
        how = (list(kernel), stride, padding, list(self.tile), self.precision)
        return _first(torch.ops.cloister.weight_gradient(_last(gy), _last(x), *how))


def _last(x: Tensor) -> Tensor:
    """Channels last, in memory too."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)


_GATHER = [(128, 64, 32, 4, 3), (128, 128, 32, 8, 3), (64, 64, 32, 4, 1)]
_REDUCE = [(128, 64, 32, 2, 3), (64, 64, 32, 2, 3)]
_SPLIT = [("tf32x3", (128, 64, 32, 8, 3)), ("tf32x3", (64, 64, 32, 4, 3))]
_TILES = {
    ("exact", False): [*_SPLIT, ("ieee", (128, 64, 16, 4, 2))],
    ("exact", True): [("ieee", (64, 64, 16, 4, 3)), ("tf32x3", (64, 64, 32, 4, 3)), ("tf32x3", (64, 64, 16, 2, 3))],
    **{(coarse, False): [(coarse, tile) for tile in _GATHER] for coarse in ("tf32", "bf16")},
    **{(coarse, True): [(coarse, tile) for tile in _REDUCE] for coarse in ("tf32", "bf16")},
}
"""By precision, and whether it is the weights' gradient: how numbers are multiplied, and tiles that were fast on some
shape. Exact float32 is also had from tf32 units ("tf32x3"): each factor is split in two and three products are added,
which comes out closer to the true sum than the vendor's float32 (2e-7 against 3e-7 to 2e-6; a test compares)."""
_MOST_PATCHES = 2**31  # bytes: beyond this, writing patches down takes memory that clients could use
