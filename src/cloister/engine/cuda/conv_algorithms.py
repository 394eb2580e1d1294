"""The ways to convolve many clients at once, each with weights of its own: images [K, B, C, H, W], weights
[K, O, C, R, S]. They differ in speed, by shape, and in the last bits.

* `Tiles`: kernels that gather image patches as they multiply. For float32 and bfloat16 on a GPU.
* `Unfold`: write the image patches down and multiply matrices. For everything else on a GPU.
* `Grouped`: one convolution of K groups, which is what `vmap` does by itself. On a CPU, and where patches would take
  too much memory.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad

from cloister.engine.cuda.tiles import default_tile


class Algorithm(Protocol):
    """A convolution and its two gradients."""

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor: ...

    def input_gradient(self, gy: Tensor, w: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor: ...

    def weight_gradient(self, gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor: ...


def algorithm_for(images: Tensor, kernel: Sequence[int], precision: str) -> Algorithm:
    """How images [K, B, C, H, W] are convolved with such kernels: by shapes and types, never by a clock."""
    if not images.is_cuda:
        return Grouped()
    if images.dtype in (torch.float32, torch.bfloat16) and kernel[0] == kernel[1] and find_spec("triton"):
        importlib.import_module("cloister.engine.cuda.conv_kernels")
        return Tiles(precision)
    return Unfold() if images.numel() * math.prod(kernel) * images.element_size() <= _MOST_PATCHES else Grouped()


_MOST_PATCHES = 2**31  # bytes: beyond this, writing patches down takes memory that clients could use


class Grouped:
    """One convolution of K groups."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        flat = None if bias is None else bias.flatten()
        y = torch.conv2d(_side_by_side(x), w.flatten(0, 1), flat, stride, padding, groups=len(x))
        return _apart(y, len(x))

    @staticmethod
    def input_gradient(gy: Tensor, w: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
        clients, images, channels = len(gy), gy.shape[1], w.shape[2]
        shape = (images, clients * channels, *size)
        g = grad.conv2d_input(shape, w.flatten(0, 1), _side_by_side(gy), stride, padding, groups=clients)
        return _apart(g, clients)

    @staticmethod
    def weight_gradient(gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
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
    def input_gradient(gy: Tensor, w: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
        clients, images, out, tall, broad = gy.shape
        g = w.flatten(2).transpose(1, 2) @ gy.transpose(1, 2).reshape(clients, out, -1)
        kernel = (w.shape[3], w.shape[4])
        columns = g.unflatten(2, (images, tall * broad)).transpose(1, 2).flatten(0, 1)
        return F.fold(columns, tuple(size), kernel, padding=padding, stride=stride).unflatten(0, (clients, images))

    @staticmethod
    def weight_gradient(gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
        patches = _patches(x, kernel, stride, padding)
        g = gy.transpose(1, 2).reshape(len(gy), gy.shape[2], -1) @ patches.transpose(1, 2)
        return g.unflatten(2, (x.shape[2], *kernel))


def _patches(x: Tensor, kernel: Any, stride: int, padding: int) -> Tensor:
    x = F.pad(x, (padding,) * 4) if padding else x
    windows = x.unfold(3, kernel[0], stride).unfold(4, kernel[1], stride)  # [K, B, C, P, Q, R, S]
    return windows.permute(0, 2, 5, 6, 1, 3, 4).flatten(4).flatten(1, 3)


@dataclass(frozen=True)
class Tiles:
    """Kernels that gather patches as they multiply; channels last. Tiles are the usual ones (see `tiles.py`)."""

    precision: str

    def forward(self, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
        bias = None if bias is None else bias.contiguous()
        size = [(x.shape[3 + i] + 2 * padding - w.shape[3 + i]) // stride + 1 for i in (0, 1)]
        return self._convolve(_last(x), _last(w), bias, size, stride, padding, 1)

    def input_gradient(self, gy: Tensor, w: Tensor, size: Sequence[int], stride: int, padding: int) -> Tensor:
        turned = w.flip(3, 4).permute(0, 2, 3, 4, 1).contiguous()
        return self._convolve(_last(gy), turned, None, list(size), 1, w.shape[3] - 1 - padding, stride)

    def weight_gradient(self, gy: Tensor, x: Tensor, kernel: Sequence[int], stride: int, padding: int) -> Tensor:
        patches = gy[:, :, 0].numel() * x.shape[2] * math.prod(kernel) * x.element_size()
        if self.precision == "tf32" and gy.shape[2] >= _MANY_CHANNELS and patches <= _MOST_PATCHES:
            return Unfold.weight_gradient(gy, x, kernel, stride, padding)
        how, tile = default_tile("weight_gradient", self.precision)
        found = torch.ops.cloister.weight_gradient(_last(gy), _last(x), list(kernel), stride, padding, list(tile), how)
        return _first(found)

    def _convolve(self, x: Tensor, w: Tensor, bias: Tensor | None, size: list[int], *where: int) -> Tensor:
        how, tile = default_tile("convolve", self.precision, x.shape[-1])
        return _first(torch.ops.cloister.convolve(x, w, bias, size, *where, list(tile), how))


_MANY_CHANNELS = 256
"""From which on a library's product of matrices is so much faster than the kernel that patches are written down."""


def _last(x: Tensor) -> Tensor:
    """Channels last, in memory too."""
    return x.permute(0, 1, 3, 4, 2).contiguous()


def _first(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)
