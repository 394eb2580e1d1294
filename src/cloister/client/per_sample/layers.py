"""The layers that ghost clipping knows: how their calls are read, tapped, and turned into gradients of samples.

A tap is a tensor that is added to a layer's output and stands for its bias (or is zero): the gradient with respect to
it is that with respect to the output, sample by sample.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cloister.client.per_sample import convolutions
from cloister.client.per_sample.norms import LayerGradients, Masks, Outer, Products, Written


class Call(NamedTuple):
    """One call of a layer's function, however its arguments were passed."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    settings: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Layer(ABC):
    """One call in a model's forward pass: the names of its trainable parameters, and the shapes of one sample."""

    weight: str | None
    bias: str | None
    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: tuple[int, ...]
    settings: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters, in the order of the blocks of a portion."""
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    def tap(self, views: Mapping[str, Tensor], samples: int, like: Tensor) -> Tensor:
        """What is added to the output [samples, ...] instead of the bias."""
        if self.bias is None:
            return torch.zeros((), dtype=like.dtype, device=like.device).expand(samples, *self.output)
        return self.spread(views[self.bias]).expand(samples, *self.output)

    def fits(self) -> bool:
        """Whether the call is one that ghost clipping understands."""
        return True

    def spread(self, vector: Tensor) -> Tensor:
        """A bias in a shape that broadcasts to the output."""
        return vector

    @abstractmethod
    def tapped(self, call: Call, bias: Tensor | None, tap: Tensor) -> tuple[Tensor, Tensor]:
        """The output with the tap, and what has to be kept; `bias` is one that is not trained."""

    @abstractmethod
    def layer_gradients(self, kept: Tensor, g: Tensor, masks: Masks, written: bool) -> LayerGradients:
        """The samples' gradients; `written` asks for them row by row."""

    @abstractmethod
    def numbers(self) -> int:
        """About how many numbers a sample's portion takes."""


_NARROW = 32
"""From so many outputs on, a product takes as long either way."""


class Dense(Layer):
    """F.linear, on vectors or on sequences of any shape."""

    def fits(self) -> bool:
        return len(self.kernel) == 2

    def tapped(self, call: Call, bias: Tensor | None, tap: Tensor) -> tuple[Tensor, Tensor]:
        assert call.weight is not None
        if self._narrow and not call.input.is_cuda:
            output = (call.weight @ call.input.mT).mT
            return (output if bias is None else output + bias) + tap, call.input
        return F.linear(call.input, call.weight, bias) + tap, call.input

    @property
    def _narrow(self) -> bool:
        """Whether there are few outputs: on a CPU their product with the inputs takes half as long, transposed."""
        return len(self.output) == 1 and self.kernel[0] < _NARROW

    def layer_gradients(self, kept: Tensor, g: Tensor, masks: Masks, written: bool) -> LayerGradients:
        if len(self.output) > 1:
            return self._of_positions(kept.flatten(1, -2).mT, g.flatten(1, -2).mT, masks, written)
        if self.weight is None:
            return _masked((g.clone(),), masks)
        if not written:
            return Outer(g, kept, self.bias is not None, masks)
        weights = (g[:, :, None] * kept[:, None]).flatten(1)
        return _masked((weights, g.clone()) if self.bias is not None else (weights,), masks)

    def numbers(self) -> int:
        inputs, outputs = self.kernel[1], self.kernel[0]
        if len(self.output) == 1:
            return 4 * (inputs + outputs)
        return self._numbers(math.prod(self.output[:-1]), 0)

    def _of_positions(self, kept: Tensor, g: Tensor, masks: Masks, written: bool) -> LayerGradients:
        """Of what was kept of the inputs, and the outputs' gradients [b, o, ...]: one at every position."""
        bias = None if self.bias is None else g.flatten(2).sum(2)
        if self.weight is None:
            assert bias is not None
            return _masked((bias,), masks)
        if masks is None and not written and self._few(math.prod(g.shape[2:])):
            return Products(g.flatten(2), self._inputs(kept), bias)
        weights = self._weights(kept, g)
        return _masked((weights,) if bias is None else (weights, bias), masks)

    def _inputs(self, kept: Tensor) -> Tensor:
        """What every position of the output is made of, [b, i, p]."""
        return kept

    def _weights(self, kept: Tensor, g: Tensor) -> Tensor:
        """The gradients of the weights, flat: [b, o * i]."""
        return (g.flatten(2) @ self._inputs(kept).mT).flatten(1)

    def _few(self, positions: int) -> bool:
        """Whether products of matrices [p, p], in float64, are much less work than the weights' gradients."""
        inputs, outputs = math.prod(self.kernel[1:]), self.kernel[0]
        return 8 * positions * (inputs + outputs) < inputs * outputs

    def _numbers(self, positions: int, patches: int) -> int:
        if self._few(positions):
            return 3 * (patches + math.prod(self.input) + math.prod(self.output))
        return patches + 2 * math.prod(self.kernel)


class Convolution(Dense):
    """F.conv2d in one group."""

    def fits(self) -> bool:
        *_, padding, _, groups = self.settings
        return groups == 1 and not isinstance(padding, str) and len(self.output) == 3

    def spread(self, vector: Tensor) -> Tensor:
        return vector[:, None, None]

    def tapped(self, call: Call, bias: Tensor | None, tap: Tensor) -> tuple[Tensor, Tensor]:
        assert call.weight is not None
        return torch.conv2d(call.input, call.weight, bias, *call.settings) + tap, call.input

    def layer_gradients(self, kept: Tensor, g: Tensor, masks: Masks, written: bool) -> LayerGradients:
        return self._of_positions(kept, g, masks, written)

    def numbers(self) -> int:
        positions = math.prod(self.output[1:])
        return self._numbers(positions, positions * math.prod(self.kernel[1:]))

    def _weights(self, kept: Tensor, g: Tensor) -> Tensor:
        if kept.device.type != "cpu" or math.prod(self.kernel) * math.prod(self.output[1:]) < convolutions.MUCH:
            return super()._weights(kept, g)
        settings = [_pair(setting) for setting in self.settings[:3]]
        return convolutions.weight_gradients(kept, g, self.kernel[2:], *settings).flatten(1)

    def _inputs(self, images: Tensor) -> Tensor:
        """Patches [b, channels * rows * columns, positions]: views that one copy writes down, which F.unfold takes
        longer for."""
        stride, padding, dilation = (_pair(setting) for setting in self.settings[:3])
        if any(padding):
            images = F.pad(images, (padding[1], padding[1], padding[0], padding[0]))
        for axis in (0, 1):
            wide = dilation[axis] * (self.kernel[2 + axis] - 1) + 1
            images = images.unfold(2 + axis, wide, stride[axis])
        images = images[..., :: dilation[0], :: dilation[1]]  # [b, channels, down, right, rows, columns]
        # Rows and columns last: as they lie side by side in the image, and are copied fastest.
        return images.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2).mT


class Norm(Layer):
    """A normalization with a scale and a shift for each channel or entry, whose gradients are always written down."""

    def fits(self) -> bool:
        return self.input == self.output

    @abstractmethod
    def normal(self, call: Call) -> Tensor:
        """Without scale and shift."""

    @abstractmethod
    def gathered(self, entries: Tensor) -> Tensor:
        """The sum [b, n] over all entries that share a scale."""

    def tapped(self, call: Call, bias: Tensor | None, tap: Tensor) -> tuple[Tensor, Tensor]:
        tap = tap if bias is None else tap + self.spread(bias)
        normal = self.normal(call)
        return normal + tap if call.weight is None else torch.addcmul(tap, normal, self.spread(call.weight)), normal

    def layer_gradients(self, kept: Tensor, g: Tensor, masks: Masks, written: bool) -> LayerGradients:
        scale = () if self.weight is None else (self.gathered(g * kept),)
        shift = () if self.bias is None else (self.gathered(g),)
        return _masked((*scale, *shift), masks)

    def numbers(self) -> int:
        return 2 * math.prod(self.output)


class GroupNorm(Norm):
    """F.group_norm."""

    def spread(self, vector: Tensor) -> Tensor:
        return vector.view(-1, *(1,) * (len(self.output) - 1))

    def normal(self, call: Call) -> Tensor:
        groups, eps = call.settings
        return F.group_norm(call.input, groups, None, None, eps)

    def gathered(self, entries: Tensor) -> Tensor:
        return entries.flatten(2).sum(2) if entries.dim() > 2 else entries.clone()


class LayerNorm(Norm):
    """F.layer_norm."""

    def normal(self, call: Call) -> Tensor:
        shape, eps = call.settings
        return F.layer_norm(call.input, shape, None, None, eps)

    def gathered(self, entries: Tensor) -> Tensor:
        return entries.reshape(len(entries), -1, math.prod(self.settings[0])).sum(1)


def _masked(blocks: tuple[Tensor, ...], masks: Masks) -> Written:
    if masks is None:
        return Written(blocks)
    return Written(tuple(block * mask for block, mask in zip(blocks, masks, strict=True)))


def _pair(setting: Any) -> tuple[int, int]:
    return (setting, setting) if isinstance(setting, int) else (setting[0], setting[-1])


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call:
    return Call(input, weight, bias)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Call:
    return Call(input, weight, bias, (stride, padding, dilation, groups))


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Call:
    return Call(input, weight, bias, (num_groups, eps))


def _layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Call:
    return Call(input, weight, bias, (normalized_shape, eps))


KNOWN: dict[Any, tuple[Callable[..., Call], type[Layer]]] = {
    F.linear: (_linear, Dense),
    torch.conv2d: (_conv2d, Convolution),
    F.group_norm: (_group_norm, GroupNorm),
    F.layer_norm: (_layer_norm, LayerNorm),
}
"""For each function how its arguments are read, and what it is."""
