"""Convolutions whose weights differ from client to client, which are caught while a cohort is computed.

Under `vmap`, a convolution of K clients with K sets of weights is none that a library was tuned for: it is computed by
one of `conv_algorithms.py` instead. Whoever writes a model sees none of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import grad
from torch.overrides import TorchFunctionMode

from cloister.engine.cuda.conv_algorithms import algorithm_for
from cloister.engine.cuda.dropout import fast_coins
from cloister.engine.cuda.pooling import max_pool
from cloister.random.streams import coins


class PerClient(TorchFunctionMode):
    """Computes `conv2d` and max-pooling, and draws for dropout, in a way that suits batched clients; all else is left
    alone."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return self._convolve(*args, **kwargs)
        if func in (torch.max_pool2d, F.max_pool2d):
            return max_pool(*args, **kwargs)
        if func is coins:
            return fast_coins(*args, **kwargs)
        return func(*args, **kwargs)

    def _convolve(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        step, frame, hole = _square(stride), _square(padding), _square(dilation)
        if step is None or frame is None or hole != 1 or groups != 1 or input.dim() != 4:
            return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
        if self.precision == "bf16" and input.dtype == torch.float32 and input.is_cuda:
            input = input.to(torch.bfloat16)  # and so is what comes out: half of the memory that is moved
        result: Tensor = _Convolution.apply(input, weight, bias, step, frame, self.precision)
        return result


def _square(value: Any) -> int | None:
    """The number of a setting that is the same in both directions; None for anything else."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    return pair[0] if pair[0] == pair[-1] and isinstance(pair[0], int) else None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, precision: str) -> Tensor:
        return torch.conv2d(x, w.to(x.dtype), None if bias is None else bias.to(x.dtype), stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        x, w, bias, ctx.stride, ctx.padding, ctx.precision = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, w)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        how = (ctx.stride, ctx.padding, ctx.precision)
        gx = _InputGradient.apply(gy, w, tuple(x.shape[2:]), *how) if ctx.needs_input_grad[0] else None
        gw = _WeightGradient.apply(gy, x, tuple(w.shape[2:]), *how) if ctx.needs_input_grad[1] else None
        gb = gy.sum((0, 2, 3), dtype=w.dtype) if ctx.biased and ctx.needs_input_grad[2] else None
        return gx, None if gw is None else gw.to(w.dtype), gb, None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        x = _clients_first(x, dims[0], info.batch_size)
        algorithm = algorithm_for(x, w.shape[-2:], precision)
        if dims[1] is None and (bias is None or dims[2] is None):  # one model for all: an ordinary convolution
            flat = None if bias is None else bias[None]
            y = algorithm.forward(x.flatten(0, 1)[None], w[None].to(x.dtype), flat, stride, padding)
            return y[0].unflatten(0, x.shape[:2]), 0
        w = _clients_first(w, dims[1], info.batch_size)
        bias = None if bias is None else _clients_first(bias, dims[2], info.batch_size)
        return algorithm.forward(x, w.to(x.dtype), bias, stride, padding), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(gy: Tensor, w: Tensor, size: Any, stride: int, padding: int, precision: str) -> Tensor:
        return grad.conv2d_input((len(gy), w.shape[1], *size), w.to(gy.dtype), gy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, gy: Tensor, w: Tensor, size: Any, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        gy = _clients_first(gy, dims[0], info.batch_size)
        algorithm, w = algorithm_for(gy, w.shape[-2:], precision), w.to(gy.dtype)
        if dims[1] is None:
            gx = algorithm.input_gradient(gy.flatten(0, 1)[None], w[None], size, stride, padding)
            return gx[0].unflatten(0, gy.shape[:2]), 0
        w = _clients_first(w, dims[1], info.batch_size)
        return algorithm.input_gradient(gy, w, size, stride, padding), 0


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(gy: Tensor, x: Tensor, kernel: Any, stride: int, padding: int, precision: str) -> Tensor:
        return grad.conv2d_weight(x, (gy.shape[1], x.shape[1], *kernel), gy.to(x.dtype), stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, gy: Tensor, x: Tensor, kernel: Any, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        gy, x = _clients_first(gy, dims[0], info.batch_size), _clients_first(x, dims[1], info.batch_size)
        return algorithm_for(x, kernel, precision).weight_gradient(gy, x, kernel, stride, padding), 0


def _clients_first(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
