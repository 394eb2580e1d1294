"""The coins of dropout, drawn for all clients by one kernel."""

from __future__ import annotations

import importlib
import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from cloister.random.streams import coins, limit_of


def fast_coins(key: Tensor, shape: Any, probability: float, skip: Tensor | None = None) -> Tensor:
    """As `coins`, and the same bits."""
    if skip is not None or not key.is_cuda or find_spec("triton") is None:
        return coins(key, shape, probability, skip)
    found: Tensor = _Coins.apply(key, math.prod(shape), probability)
    return found.view(shape)


class _Coins(torch.autograd.Function):
    @staticmethod
    def forward(key: Tensor, count: int, probability: float) -> Tensor:
        return coins(key, (count,), probability)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def vmap(info: Any, dims: Any, key: Tensor, count: int, probability: float) -> tuple[Tensor, int]:
        importlib.import_module("cloister.engine.cuda.coin_kernels")
        drawn = torch.ops.cloister.coins(key.movedim(dims[0], 0).contiguous(), count, limit_of(probability))
        return drawn, 0
