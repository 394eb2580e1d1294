"""Max-pooling over windows that do not overlap, as comparisons of single pixels.

What torch's own kernels for it read and write cannot be joined with what comes before and after (activations, changes
of layout); comparisons can, so that a compiled program has one pass over the pixels instead of three.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def max_pool(
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """As torch's `max_pool2d`: the largest pixel of each window; its gradient goes to the first of the largest."""
    size = _pair(kernel_size)
    step = size if stride is None or stride == [] else _pair(stride)
    small = size == (2, 2) and step == size and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1)
    if not small or ceil_mode or return_indices or input.dim() != 4:
        pool: Any = F.max_pool2d
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _PairwiseMax.apply(input)


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class _PairwiseMax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        a, b, c, d = _corners(x)
        upper, lower = torch.where(_beats(b, a), b, a), torch.where(_beats(d, c), d, c)
        return torch.where(_beats(lower, upper), lower, upper)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        a, b, c, d = _corners(x)
        right, right_below = _beats(b, a), _beats(d, c)
        below = _beats(torch.where(right_below, d, c), torch.where(right, b, a))
        zero = torch.zeros((), dtype=gy.dtype, device=gy.device)
        above = torch.where(below, zero, gy)
        under = torch.where(below, gy, zero)
        pieces = (
            torch.where(right, zero, above),
            torch.where(right, above, zero),
            torch.where(right_below, zero, under),
            torch.where(right_below, under, zero),
        )
        rows = [torch.stack(pair, -1).flatten(-2) for pair in (pieces[:2], pieces[2:])]  # left and right in turns
        gx = torch.stack(rows, -2).flatten(-3, -2)
        tall, broad = x.shape[-2] - gx.shape[-2], x.shape[-1] - gx.shape[-1]  # an odd last line is in no window
        return F.pad(gx, (0, broad, 0, tall)) if tall or broad else gx


def _corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four pixels of every window, by rows."""
    x = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
    return x[..., 0::2, 0::2], x[..., 0::2, 1::2], x[..., 1::2, 0::2], x[..., 1::2, 1::2]


def _beats(new: Tensor, old: Tensor) -> Tensor:
    """Whether a pixel takes the place of those before it: it is larger, or no number."""
    return (new > old) | new.isnan()
