"""The gradients of single samples, clipped one by one and summed: what example-level privacy is made of.

There are two ways. Book-keeping (`books.py`) takes one backward pass for the whole batch, for models made of layers
that it knows. The other (`alone.py`) runs every sample as a batch of one, whatever the model. Which one a model gets is
found out by trying, when it is first asked for: book-keeping only where it agrees with the other, so that a model that
mixes samples in its forward pass never gets it.

Guarantee: one sample, whatever its data, moves the sum of clipped gradients by no more than the clip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cloister.errors import CloisterError
from cloister.joints import Batch, Grad, SampleGradients
from cloister.precision import multiplying
from cloister.samples.alone import Alone
from cloister.samples.books import BookKeeping, layers_of
from cloister.samples.common import Losses, Model

__all__ = ["Losses", "Model", "Samples"]


@dataclass(eq=False)
class Samples:
    """The gradients of a model's single samples, the faster way that is right; `inputs` and `labels` are a few."""

    model: Model
    inputs: Tensor
    labels: Tensor
    _way: SampleGradients | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def way(self) -> SampleGradients:
        """How they are computed, decided when it is first asked for."""
        if self._way is None:
            with self._lock:
                self._way = self._way or _elsewhere(lambda: fitting(self.model, self.inputs, self.labels))
        return self._way

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of clipped gradients and their norms; see `Problem.clipped`."""
        return self.way.clipped(grad, w, batch, clip, active)

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: float, active: Tensor | None) -> Tensor:
        """The sum of clamped gradients; see `Problem.clamped`."""
        return self.way.clamped(grad, w, batch, limit, active)

    def bytes_for(self, batch: int) -> int:
        """About how much memory a batch of one client takes beside what a plain gradient takes."""
        return self.way.bytes_for(batch)


def _elsewhere(compute: Callable[[], SampleGradients]) -> SampleGradients:
    """In a thread of its own: under `vmap`, or while an engine traces, only a new thread computes plain numbers."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(compute).result()


def fitting(model: Model, inputs: Tensor, labels: Tensor) -> SampleGradients:
    """Book-keeping where it covers the model and comes to what samples have alone; otherwise these alone."""
    with multiplying("exact", inputs.device):  # or the two would differ by what a coarser product rounds
        return _fitting(model, inputs, labels)


def _fitting(model: Model, inputs: Tensor, labels: Tensor) -> SampleGradients:
    w, batch = _made_up(model, inputs, labels)
    layers, alone = layers_of(model, w, batch), Alone(model)
    try:
        sums, norms = alone.clipped(torch.func.grad, w, batch, torch.inf, None)
        clip = float(norms.mean()) / 2
        sums = torch.stack([sums, alone.clipped(torch.func.grad, w, batch, clip, None)[0]])
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CloisterError(
            f"Expected a model that takes a single sample, found that it fails ({reason}): keep the batch as the first "
            "dimension, also where it is 1, and write what depends on inputs as torch.where."
        ) from error
    if layers is None:
        return alone
    books = BookKeeping(model, layers)
    found = [books.clipped(torch.func.grad, w, batch, limit, None) for limit in (torch.inf, clip)]
    agree = _close(torch.stack([total for total, _ in found]), sums) and _close(found[0][1][:, None], norms[:, None])
    return books if agree and bool((norms > 0).all()) else alone


def _close(rows: Tensor, others: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether vectors are the same but for rounding; never where a number is not finite."""
    return bool(((rows - others).norm(dim=1) <= tolerance * others.norm(dim=1)).all())


def _made_up(model: Model, inputs: Tensor, labels: Tensor, count: int = 3) -> tuple[Tensor, Batch]:
    """Random parameters and random samples, like the given ones but nobody's."""
    device, random = inputs.device, torch.Generator().manual_seed(0)

    def some_of(values: Tensor, shape: tuple[int, ...]) -> Tensor:
        return values[torch.randint(len(values), shape, generator=random).to(device)]

    shape = (count, *inputs.shape[1:])
    if inputs.is_floating_point():
        made = torch.randn(shape, generator=random, dtype=torch.float64).to(inputs)
    elif inputs.dtype == torch.uint8:
        made = torch.randint(256, shape, generator=random).to(inputs)
    else:
        made = some_of(inputs.flatten(), shape)
    # Wide layers get small weights: numbers keep their size on the way, and no activation saturates.
    pieces = [
        torch.randn(shape.numel(), generator=random, dtype=torch.float64) / shape[1:].numel() ** 0.5
        for shape in model.layout.shapes
    ]
    batch = Batch(
        inputs=made,
        labels=some_of(labels, (count,)),
        mask=torch.ones(count, dtype=torch.bool, device=device),
        count=torch.tensor(count, device=device),
        key=torch.zeros((), dtype=torch.int64, device=device),
        live=torch.ones((), dtype=torch.bool, device=device),
        noise=torch.zeros(0, dtype=model.dtype, device=device),
    )
    return torch.cat(pieces).to(device, model.dtype), batch
