"""Max-pooling of batched clients by kernels of ours, `pool` and its gradient `spread`.

Convolutions leave images with the channels last, and torch's kernels for that are slow: forward and backward were a
sixth of a captured round. What Inductor makes of pooling, joined with what surrounds it, is in the order of what comes
after: where that is a linear layer, it reads its images at a third of the memory's speed.

The operations are defined here, without Triton, so that they can be traced and replaced (`relu_in_pooling`) anywhere.
"""

from __future__ import annotations

from importlib.util import find_spec
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
    plain = size == step == (2, 2) and _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and not ceil_mode
    if not plain or return_indices or input.dim() != 4 or not input.is_cuda or find_spec("triton") is None:
        pool: Any = F.max_pool2d
        return pool(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    return _MaxPool.apply(input)[0]


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        y, which = torch.ops.cloister.pool(x.permute(0, 2, 3, 1).contiguous(), False)
        return y.permute(0, 3, 1, 2), which

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, Tensor]) -> None:
        ctx.size = tuple(inputs[0].shape[2:])
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, gy: Tensor, _: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        gradient: Tensor = _Spread.apply(gy, which, ctx.size)
        return gradient

    @staticmethod
    def vmap(info: Any, dims: Any, x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        x = x.movedim(dims[0], 0)
        y, which = _MaxPool.forward(x.flatten(0, 1))
        return (y.unflatten(0, x.shape[:2]), which.unflatten(0, x.shape[:2])), (0, 0)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(gy: Tensor, which: Tensor, size: Any) -> Tensor:
        found: Tensor = torch.ops.cloister.spread(gy.permute(0, 2, 3, 1).contiguous(), which, list(size))
        return found.permute(0, 3, 1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, dims: Any, gy: Tensor, which: Tensor, size: Any) -> tuple[Tensor, int]:
        clients = info.batch_size
        gy, which = (
            t.expand(clients, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((gy, which), dims[:2], strict=True)
        )
        gx = _Spread.forward(gy.flatten(0, 1), which.flatten(0, 1), size)
        return gx.unflatten(0, gy.shape[:2]), 0


def _pool_empty(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    y = x.new_empty(len(x), x.shape[1] // 2, x.shape[2] // 2, x.shape[3])
    return y, torch.empty_like(y, dtype=torch.int8)


def _spread_empty(gy: Tensor, which: Tensor, size: list[int]) -> Tensor:
    return gy.new_empty(len(gy), *size, gy.shape[3])


def _pool_now(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    from cloister.engine.cuda.pool_kernels import pool

    return pool(x, relu)


def _spread_now(gy: Tensor, which: Tensor, size: list[int]) -> Tensor:
    from cloister.engine.cuda.pool_kernels import spread

    return spread(gy, which, (size[0], size[1]))


_LIBRARY = torch.library.Library("cloister", "FRAGMENT")
_LIBRARY.define("pool(Tensor x, bool relu) -> (Tensor, Tensor)")
_LIBRARY.define("spread(Tensor gy, Tensor which, int[] size) -> Tensor")
_LIBRARY.impl("pool", _pool_now, "CUDA")
_LIBRARY.impl("spread", _spread_now, "CUDA")
torch.library.register_fake("cloister::pool", _pool_empty, lib=_LIBRARY)
torch.library.register_fake("cloister::spread", _spread_empty, lib=_LIBRARY)

POOL, SPREAD = torch.ops.cloister.pool.default, torch.ops.cloister.spread.default
"""The operations, as a traced step shows them."""
