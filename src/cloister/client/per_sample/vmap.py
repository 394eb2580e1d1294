"""The gradient of each sample by itself: slower than ghost clipping, and right for every model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cloister.client.per_sample.common import Model, clamped_sum, clipping, exactly, finite, largest, squared_norms
from cloister.core import Batch, Grad

_MOST_NUMBERS = 2**24
"""How many numbers the gradients of the samples that are computed at once may have, for one client."""


@dataclass(frozen=True)
class PerSampleVmap:
    """Every sample is a batch of one, so that nothing in the model can mix samples; some are computed at a time."""

    model: Model

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of clipped gradients and their norms; see `Objective.clipped`."""
        total, norms = torch.zeros_like(w), []
        for rows, mask in self._rows(w, batch, active):
            factors, some = clipping(squared_norms(rows).sqrt(), mask, clip_norm, w)
            with exactly(w):
                total = total + factors @ finite(rows)
            norms.append(some)
        return total, torch.cat(norms) if norms else w.new_zeros(0)

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: Tensor | float, active: Tensor | None) -> Tensor:
        """The sum of clamped gradients; see `Objective.clamped`."""
        total = torch.zeros_like(w)
        for rows, mask in self._rows(w, batch, active):
            total = total + clamped_sum(rows, mask & largest(rows).isfinite(), limit)
        return total

    def bytes_for(self, batch_size: int) -> int:
        """The rows of a chunk three times: as they come, what is active of them, and cleaned."""
        return 3 * min(batch_size, self._chunk) * self.model.layout.size * self.model.dtype.itemsize

    @property
    def _chunk(self) -> int:
        return max(1, _MOST_NUMBERS // self.model.layout.size)

    def _rows(self, w: Tensor, batch: Batch, active: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """The gradients [c, d] of some samples after the others, and which of these are real."""

        def loss(w: Tensor, inputs: Tensor, label: Tensor, slot: Tensor) -> Tensor:
            with _Plain():
                views = self.model.layout.views(w)
                return self.model.losses(views, inputs[None], label[None], batch.key, slot).sum()

        # Not the engine's `grad`: not every engine's can be mapped over samples.
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0, 0))
        slots = torch.arange(len(batch.mask), device=w.device)
        whole = (self.model.see(batch, w.dtype), batch.labels, slots, batch.mask)
        for *samples, mask in zip(*(torch.split(column, self._chunk) for column in whole), strict=True):
            if len(mask):
                rows = gradients(w, *samples)
                yield rows if active is None else rows * active, mask


class _Plain(TorchFunctionMode):
    """Leaves convolutions to torch: what an engine has for those of whole batches cannot be mapped over samples."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.conv2d:
            with torch._C.DisableTorchFunction():
                return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))
