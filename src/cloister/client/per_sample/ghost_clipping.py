"""Ghost clipping: the gradients of single samples out of one backward pass over the whole batch.

What a layer was given and the gradient of its output say all about the gradients of its parameters, sample by sample.
So the backward pass goes through the outputs alone, and no gradient of a weight is computed in it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from cloister.client.per_sample.common import Model, clamped_sum, clipping, exactly, largest
from cloister.client.per_sample.layers import KNOWN, Call, Layer
from cloister.client.per_sample.norms import LayerGradients, Written
from cloister.core import Batch, Grad
from cloister.errors import CloisterError


@dataclass(frozen=True)
class GhostClipping:
    """For models in which every trainable parameter belongs to one call of a layer that is known."""

    model: Model
    layers: tuple[Layer, ...]

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The sum of clipped gradients and their norms; see `Objective.clipped`."""
        if not len(batch.mask):
            return torch.zeros_like(w), w.new_zeros(0)
        records = self._records(grad, w, batch)
        with torch.no_grad(), exactly(w):
            per_layer = self._per_layer(records, w, active, written=False)
            squares = sum((p.squared_norms() for p in per_layer[1:]), per_layer[0].squared_norms())
            factors, norms = clipping(squares.sqrt(), batch.mask, clip_norm, w)
            total = self._joined([layer_gradients.weighted(factors) for layer_gradients in per_layer])
            return total if active is None else total * active, norms

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: Tensor | float, active: Tensor | None) -> Tensor:
        """The sum of clamped gradients; see `Objective.clamped`."""
        if not len(batch.mask):
            return torch.zeros_like(w)
        records = self._records(grad, w, batch)
        with torch.no_grad(), exactly(w):
            per_layer = self._per_layer(records, w, active, written=True)
            blocks = [layer_gradients.blocks for layer_gradients in per_layer if isinstance(layer_gradients, Written)]
            each = [largest(block).isfinite() for some in blocks for block in some]
            counts = batch.mask & torch.stack(each).all(0)
            return self._joined([tuple(clamped_sum(block, counts, limit) for block in some) for some in blocks])

    def bytes_for(self, batch_size: int) -> int:
        """What all layers keep at once."""
        return batch_size * sum(layer.numbers() for layer in self.layers) * self.model.dtype.itemsize

    def _records(self, grad: Grad, w: Tensor, batch: Batch) -> list[tuple[Layer, Tensor, Tensor]]:
        """Each layer, what it was given, and the gradients [b, ...] of the samples' losses by its output."""
        views, inputs = self.model.layout.views(w), self.model.see(batch, w.dtype)
        taps = tuple(layer.tap(views, len(batch.mask), w) for layer in self.layers)

        def total(taps: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            with _Tapping(views, self.layers, taps) as calls:
                losses = self.model.losses(views, inputs, batch.labels, batch.key)
            _expect_alike(len(calls.kept) == len(self.layers))
            return losses.sum(), tuple(calls.kept)  # padding has gradients too, which nobody counts

        gradients, kept = grad(total, has_aux=True)(taps)
        return list(zip(self.layers, kept, gradients, strict=True))

    def _per_layer(
        self, records: list[tuple[Layer, Tensor, Tensor]], w: Tensor, active: Tensor | None, written: bool
    ) -> list[LayerGradients]:
        names, pieces = self.model.layout.names, self.model.layout.pieces
        flags = None if active is None else dict(zip(names, pieces(active), strict=True))
        return [
            layer.layer_gradients(
                a.to(w.dtype), g, None if flags is None else tuple(flags[n] for n in layer.names), written
            )
            for layer, a, g in records
        ]

    def _joined(self, pieces: Sequence[tuple[Tensor, ...]]) -> Tensor:
        """What belongs to single parameters, layer by layer, as one vector."""
        found: dict[str, Tensor] = {}
        for layer, some in zip(self.layers, pieces, strict=True):
            found.update(zip(layer.names, some, strict=True))
        return torch.cat([found[name] for name in self.model.layout.names])


class _Calls(TorchFunctionMode):
    """Sees the calls of known layers that have trainable parameters; these are recognized by identity."""

    def __init__(self, views: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(view): name for name, view in views.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in KNOWN:
            read, kind = KNOWN[func]
            call = read(*args, **kwargs)
            weight, bias = self.names.get(id(call.weight)), self.names.get(id(call.bias))
            if weight is not None or bias is not None:
                return self.returned(call, kind, weight, bias, lambda: func(*args, **kwargs))
        return func(*args, **kwargs)

    @abstractmethod
    def returned(
        self, call: Call, kind: type[Layer], weight: str | None, bias: str | None, plainly: Callable[[], Tensor]
    ) -> Tensor:
        """What such a call returns."""


class _Tapping(_Calls):
    """Taps the calls, which come in the order of the layers, and keeps what the gradients of their weights need."""

    def __init__(self, views: Mapping[str, Tensor], layers: Sequence[Layer], taps: Sequence[Tensor]) -> None:
        super().__init__(views)
        self.layers, self.taps = layers, taps
        self.kept: list[Tensor] = []

    def returned(
        self, call: Call, kind: type[Layer], weight: str | None, bias: str | None, plainly: Callable[[], Tensor]
    ) -> Tensor:
        place = len(self.kept)
        _expect_alike(place < len(self.layers))
        layer = self.layers[place]
        _expect_alike((weight, bias, call.settings) == (layer.weight, layer.bias, layer.settings))
        output, kept = layer.tapped(call, call.bias if bias is None else None, self.taps[place])
        self.kept.append(kept)
        return output


class _Noting(_Calls):
    """Notes what layers a model has."""

    def __init__(self, views: Mapping[str, Tensor], samples: int) -> None:
        super().__init__(views)
        self.samples = samples
        self.layers: list[Layer] = []
        self.fits = True

    def returned(
        self, call: Call, kind: type[Layer], weight: str | None, bias: str | None, plainly: Callable[[], Tensor]
    ) -> Tensor:
        output = plainly()
        shapes = [tuple(tensor.shape) for tensor in (call.input, output)]
        kernel = () if call.weight is None else tuple(call.weight.shape)
        layer = kind(weight, bias, shapes[0][1:], shapes[1][1:], kernel, call.settings)
        batched = all(len(shape) > 1 and shape[0] == self.samples for shape in shapes)
        self.fits = self.fits and batched and layer.fits()
        self.layers.append(layer)
        return output


def layers_of(model: Model, w: Tensor, batch: Batch) -> tuple[Layer, ...] | None:
    """The layers of a model in the order of their calls; None where not every parameter belongs to one of them."""
    views, inputs = model.layout.views(w), model.see(batch, w.dtype)
    with torch.no_grad(), _Noting(views, len(batch.mask)) as notes:
        model.losses(views, inputs, batch.labels, batch.key)
    uses = Counter(name for layer in notes.layers for name in layer.names)
    return tuple(notes.layers) if notes.fits and uses == Counter(model.layout.names) else None


def _expect_alike(alike: bool) -> None:
    if not alike:
        raise CloisterError(
            "Expected a model that calls its layers alike for every batch, found calls that differ from those of the "
            "trial: write what depends on a batch as torch.where."
        )
