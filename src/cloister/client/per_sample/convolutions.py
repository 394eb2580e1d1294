"""The gradients of a convolution's weights, sample by sample, by the library that trains convolutions on a CPU.

Written as a product with patches, an image is copied as often as the kernel has entries, and for wide images the copy
takes longer than the product. The library's own gradient needs no copy. It is for a whole batch; called once for each
sample it costs some tens of microseconds more, so that it is for convolutions in which a sample is much work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MUCH = 1 << 19
"""From so many products of a sample on, one call for each is less work than its patches (measured with one thread and
with two, kernels of 3 to 8, 1 to 243 channels)."""


def weight_gradients(
    images: Tensor,
    g: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """[b, o, i, rows, columns] of images [b, i, ...] and gradients [b, o, ...] of what a convolution made of them.

    On a CPU, of tensors of one dtype.
    """
    found: Tensor = torch.ops.cloister.sample_weight_gradients(
        images, g, list(kernel), list(stride), list(padding), list(dilation)
    )
    return found


def _on_a_cpu(
    images: Tensor, g: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    images, g = images.contiguous(), g.contiguous()  # once, and not sample by sample
    found = _empty(images, g, kernel, stride, padding, dilation)
    weight = found.new_empty(found.shape[1:])  # of which the shape is used
    for place in range(len(g)):
        one = slice(place, place + 1)
        _, found[place], _ = torch.ops.aten.convolution_backward(
            g[one], images[one], weight, None, stride, padding, dilation, False, [0, 0], 1, [False, True, False]
        )
    return found


def _empty(
    images: Tensor, g: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    return g.new_empty(len(g), g.shape[1], images.shape[1], *kernel)


def _batched(
    info: Any, dims: tuple[int | None, ...], images: Tensor, g: Tensor, *settings: list[int]
) -> tuple[Tensor, int]:
    """Under `vmap` the samples of all clients, one after the other."""
    moved = [
        tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
        for tensor, dim in zip((images, g), dims, strict=False)
    ]
    found = torch.ops.cloister.sample_weight_gradients(*(tensor.flatten(0, 1) for tensor in moved), *settings)
    return found.unflatten(0, moved[0].shape[:2]), 0


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")  # by its schema: see `engine/cuda/conv_kernels.py`
_LIBRARY.define(
    "sample_weight_gradients("
    "Tensor images, Tensor g, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor"
)
_LIBRARY.impl("sample_weight_gradients", _on_a_cpu, "CPU")
torch.library.register_fake("cloister::sample_weight_gradients", _empty, lib=_LIBRARY)
torch.library.register_vmap("cloister::sample_weight_gradients", _batched, lib=_LIBRARY)
