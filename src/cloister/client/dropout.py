"""Dropout from keys: clients differ, engines agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cloister.random.streams import coins, fold
from cloister.random.transformed import is_transformed


class KeyedDropout(TorchFunctionMode):
    """Dropout whose masks follow from a key, so that clients differ and engines agree.

    Covers `nn.Dropout` and its 1d, 2d and 3d forms, as modules and as functions. The n-th call under one key
    uses the key's n-th position; a sample's mask does not depend on how many samples follow it. A sample that comes
    alone, as a batch of one, says with `slot` which place in its batch it has.
    """

    def __init__(self, key: Tensor, slot: Tensor | None = None) -> None:
        super().__init__()
        self.key, self.slot = key, slot
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _DROPOUT:
            return func(*args, **kwargs)
        return self._drop(_DROPOUT[func], *args, **kwargs)

    def _drop(self, whole: bool, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return input
        self.calls += 1
        shape = input.shape[:2] + (1,) * (input.dim() - 2) if whole else input.shape
        key, divisor = fold(self.key, self.calls), 1 - p if p < 1 else 1.0
        if key.device.type == "cpu" and self.slot is None and not (is_transformed(key) or is_transformed(input)):
            bits = torch.int64 if input.element_size() == 8 else torch.int32
            if not whole and input.dtype in (torch.float32, torch.float64):
                return _dropped(input, coins(key, shape, 1 - p).to(bits).neg_(), divisor)
        keep = coins(key, shape, 1 - p, self.slot)
        return torch.where(keep, input / divisor if p < 1 else input, torch.zeros_like(input))


class _Dropped(torch.autograd.Function):
    """input / divisor, or 0, as `torch.where` has it: by bits that are all ones or all zeros, which takes a tenth."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bits: Tensor, divisor: float) -> Tensor:
        ctx.bits, ctx.divisor = bits, divisor
        return _masked(input / divisor, bits)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return _masked(gradients[0] / ctx.divisor, ctx.bits), None, None


_dropped: Callable[[Tensor, Tensor, float], Tensor] = _Dropped.apply


def _masked(fresh: Tensor, bits: Tensor) -> Tensor:
    return fresh.view(bits.dtype).bitwise_and_(bits).view(fresh.dtype)


# Each function, and whether it drops whole channels.
_DROPOUT = {F.dropout: False, F.dropout1d: True, F.dropout2d: True, F.dropout3d: True}
