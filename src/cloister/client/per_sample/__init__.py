"""The gradients of single samples, clipped one by one and summed: what example-level privacy is made of.

There are two ways. Ghost clipping (`ghost_clipping.py`) takes one backward pass for the whole batch, for models made of
layers that it knows. The other (`vmap.py`) runs every sample as a batch of one, whatever the model. Which one a model
gets is found out by trying, when it is first asked for: ghost clipping only where it agrees with the other, on made-up
samples of several kinds. That is how a model that mixes samples in its forward pass is found out, and given the other
way.

Guarantee: one sample, whatever its data, moves the sum of clipped gradients by no more than the clip; for ghost
clipping, of a model whose forward pass treats samples apart. (One that mixes them only for inputs unlike all that were
tried would not be found out.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cloister.client.per_sample.common import Losses, Model
from cloister.client.per_sample.ghost_clipping import GhostClipping, layers_of
from cloister.client.per_sample.vmap import PerSampleVmap
from cloister.core import Batch, Grad, SampleGradients
from cloister.core.precision import multiplying
from cloister.errors import CloisterError

__all__ = ["Losses", "Model", "PerSampleGradients"]


@dataclass(eq=False)
class PerSampleGradients:
    """The gradients of a model's single samples, the faster way that is right.

    `inputs` are a few samples, of which the shape and type are taken; `labels` are nobody's (`Loss.made_up`).
    """

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
        self, grad: Grad, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of clipped gradients and their norms; see `Objective.clipped`."""
        return self.way.clipped(grad, w, batch, clip_norm, active)

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: Tensor | float, active: Tensor | None) -> Tensor:
        """The sum of clamped gradients; see `Objective.clamped`."""
        return self.way.clamped(grad, w, batch, limit, active)

    def bytes_for(self, batch_size: int) -> int:
        """About how much memory a batch of one client takes beside what a plain gradient takes."""
        return self.way.bytes_for(batch_size)


def _elsewhere(compute: Callable[[], SampleGradients]) -> SampleGradients:
    """In a thread of its own: under `vmap`, or while an engine traces, only a new thread computes plain numbers."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(compute).result()


def fitting(model: Model, inputs: Tensor, labels: Tensor) -> SampleGradients:
    """Ghost clipping where it covers the model and comes to what samples have alone; otherwise these alone."""
    with multiplying("exact", inputs.device):  # or the two would differ by what a coarser product rounds
        return _fitting(model, inputs, labels)


def _fitting(model: Model, inputs: Tensor, labels: Tensor) -> SampleGradients:
    w, batches = _parameters(model, inputs.device), _made_up(model, inputs, labels)
    _expect_samples_apart(model, batches)
    layers, one_by_one = layers_of(model, w, batches[0]), PerSampleVmap(model)
    ghost, seen = None if layers is None else GhostClipping(model, layers), False
    for batch in batches:
        expected = _sums(one_by_one, w, batch)
        if ghost is not None and not _close(_sums(ghost, w, batch), expected):
            ghost = None
        seen = seen or bool((expected.norm(dim=1) > 0).all())
    return ghost if ghost is not None and seen else one_by_one  # where all gradients are zero, nothing was compared


def _sums(way: SampleGradients, w: Tensor, batch: Batch) -> Tensor:
    """What is compared: sums, not clipped and clipped, and the sum of each sample by itself."""
    try:
        total, norms = way.clipped(torch.func.grad, w, batch, torch.inf, None)
        some = [replace(batch, mask=torch.arange(len(batch.mask), device=w.device) == i) for i in range(2)]
        rest = [way.clipped(torch.func.grad, w, one, torch.inf, None)[0] for one in some]
        clip_norm = float(norms.median()) / 2 + torch.finfo(w.dtype).tiny
        return torch.stack([total, way.clipped(torch.func.grad, w, batch, clip_norm, None)[0], *rest])
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CloisterError(
            f"Expected a model that takes a single sample, found that it fails ({reason}): keep the batch as the first "
            "dimension, also where it is 1, and write what depends on inputs as torch.where."
        ) from error


def _expect_samples_apart(model: Model, batches: list[Batch]) -> None:
    """Refuse a view in which one sample changes what is seen of another: nothing after it could be clipped right."""
    for batch in batches:
        seen = model.see(batch, model.dtype)
        other = replace(batch, inputs=torch.cat([batch.inputs[:1], batch.inputs[1:].flip(0) * 0]))
        if not torch.equal(seen[:1].nan_to_num(), model.see(other, model.dtype)[:1].nan_to_num()):
            raise CloisterError(
                "Expected a view that looks at every sample by itself, found that one sample changes what is seen of "
                "another: compute statistics over the batch beforehand, from public data, and keep them fixed."
            )


def _close(rows: Tensor, others: Tensor, tolerance: float = 1e-4) -> bool:
    """Whether vectors are the same but for rounding; never where a number is not finite."""
    return bool(((rows - others).norm(dim=1) <= tolerance * others.norm(dim=1)).all())


def _parameters(model: Model, device: torch.device) -> Tensor:
    """Random ones. Wide layers get small weights: numbers keep their size on the way, and no activation saturates."""
    random = torch.Generator().manual_seed(0)
    pieces = [
        torch.randn(shape.numel(), generator=random, dtype=torch.float64) / shape[1:].numel() ** 0.5
        for shape in model.layout.shapes
    ]
    return torch.cat(pieces).to(device, model.dtype)


def _made_up(model: Model, inputs: Tensor, labels: Tensor, count: int = 5) -> list[Batch]:
    """Batches of random samples, like the given ones but nobody's: as they come, mostly zero, small and large."""
    device, random = inputs.device, torch.Generator().manual_seed(1)
    shape = (count, *inputs.shape[1:])
    seldom = torch.rand(shape, generator=random) < 0.1
    seldom[1:] &= torch.rand(shape, generator=random)[1:] < 0.1  # and one of them less so than the others
    seldom.view(count, -1)[0, 0] = True
    if inputs.is_floating_point():
        made = torch.randn(shape, generator=random, dtype=torch.float64)
        found = [made, made * seldom, made * 1e-3, made.abs() * seldom * 1e3]
    else:
        most = 256 if inputs.dtype == torch.uint8 else 2  # pixels, or tokens
        made = torch.randint(most, shape, generator=random)
        found = [made, made * seldom]
    real = torch.ones(count, dtype=torch.bool, device=device)
    return [
        Batch(
            inputs=some.to(inputs),
            labels=labels[torch.arange(count, device=labels.device) % max(len(labels), 1)],
            mask=real,
            count=torch.tensor(count, device=device),
            key=torch.zeros((), dtype=torch.int64, device=device),
            live=real.any(),
            noise=torch.zeros(0, dtype=model.dtype, device=device),
        )
        for some in found
    ]
