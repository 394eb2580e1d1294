"""Convolutions whose weights differ from client to client: the one place where it is decided how.

Under `vmap`, a convolution of K clients with K sets of weights is none that a library was tuned for. There are
several ways, and which is fastest depends on the shape:

* grouped: one convolution of K groups, which is what `vmap` does by itself;
* unfold: write the image patches down and multiply matrices;
* tiles: a kernel that gathers the patches as it multiplies.

The ways are in `ways.py`, the kernels in `kernels.py`; kernels take float32 on a GPU.

Each shape is tried in every way when it first comes up, and the fastest is kept. Whoever writes a model sees
none of it: `PerClient` catches `conv2d` while a cohort is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import grad
from torch.overrides import TorchFunctionMode

from cloister.engine.cuda.conv_algorithms import Way, ways


class PerClient(TorchFunctionMode):
    """Computes `conv2d` of batched clients in the fastest way known; everything else is left alone."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self.precision = precision

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.conv2d:
            return self._convolve(*args, **kwargs)
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
        result: Tensor = _Convolution.apply(input, weight, bias, step, frame, self.precision)
        return result


def _square(value: Any) -> int | None:
    """The number of a setting that is the same in both directions; None for anything else."""
    pair = (value, value) if isinstance(value, int) else tuple(value)
    return pair[0] if pair[0] == pair[-1] and isinstance(pair[0], int) else None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, precision: str) -> Tensor:
        return torch.conv2d(x, w, bias, stride, padding)

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
        gb = gy.sum((0, 2, 3)) if ctx.biased and ctx.needs_input_grad[2] else None
        return gx, gw, gb, None, None, None

    @staticmethod
    def vmap(
        info: Any, dims: Any, x: Tensor, w: Tensor, bias: Tensor | None, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        x = _clients_first(x, dims[0], info.batch_size)
        if dims[1] is None and (bias is None or dims[2] is None):  # one model for all: an ordinary convolution
            flat = None if bias is None else bias[None]
            y = fastest("forward", precision, x.flatten(0, 1)[None], w[None], flat, stride, padding)
            return y[0].unflatten(0, x.shape[:2]), 0
        w = _clients_first(w, dims[1], info.batch_size)
        bias = None if bias is None else _clients_first(bias, dims[2], info.batch_size)
        return fastest("forward", precision, x, w, bias, stride, padding), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(gy: Tensor, w: Tensor, size: Any, stride: int, padding: int, precision: str) -> Tensor:
        return grad.conv2d_input((len(gy), w.shape[1], *size), w, gy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, gy: Tensor, w: Tensor, size: Any, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        gy = _clients_first(gy, dims[0], info.batch_size)
        if dims[1] is None:
            gx = fastest("input_gradient", precision, gy.flatten(0, 1)[None], w[None], size, stride, padding)
            return gx[0].unflatten(0, gy.shape[:2]), 0
        w = _clients_first(w, dims[1], info.batch_size)
        return fastest("input_gradient", precision, gy, w, size, stride, padding), 0


class _WeightGradient(torch.autograd.Function):
    @staticmethod
    def forward(gy: Tensor, x: Tensor, kernel: Any, stride: int, padding: int, precision: str) -> Tensor:
        return grad.conv2d_weight(x, (gy.shape[1], x.shape[1], *kernel), gy, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(
        info: Any, dims: Any, gy: Tensor, x: Tensor, kernel: Any, stride: int, padding: int, precision: str
    ) -> tuple[Tensor, int]:
        gy, x = _clients_first(gy, dims[0], info.batch_size), _clients_first(x, dims[1], info.batch_size)
        return fastest("weight_gradient", precision, gy, x, kernel, stride, padding), 0


def _clients_first(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    return tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


CHOSEN: dict[str, str] = {}
"""What was found fastest, by operation and shape. It is kept with a run, so that a resumed one rounds alike."""


def fastest(operation: str, precision: str, *arguments: Any) -> Tensor:
    """Compute an operation in the way that is fastest for arguments of this shape."""
    options = ways(operation, precision, *arguments)
    key = " ".join(
        [operation, precision, *(str(tuple(a.shape)) if isinstance(a, Tensor) else str(a) for a in arguments)]
    )
    if CHOSEN.get(key) not in options:
        if not arguments[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return options["grouped"](*arguments)
        CHOSEN[key] = _try(options, arguments)
    return options[CHOSEN[key]](*arguments)


def _try(options: dict[str, Way], arguments: tuple[Any, ...]) -> str:
    """The name of the fastest way, by trying all; one that does not fit the device is left out."""
    times: dict[str, float] = {}
    for name, way in options.items():
        try:
            times[name] = _milliseconds(partial(way, *arguments))
        except RuntimeError:  # out of memory, or of the kernel's shared memory
            if name == "grouped":
                raise
    return min(times, key=lambda name: times[name])


def _milliseconds(compute: Callable[[], Tensor], repeats: int = 4) -> float:
    """How long a computation takes within a graph, where the host's share does not count."""
    compute()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            compute()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
