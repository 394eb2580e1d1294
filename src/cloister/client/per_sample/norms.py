"""The gradients of one layer's parameters, sample by sample, written down or not.

A dense layer or a convolution maps inputs a_p to outputs at some positions p (one for a plain vector), and what a
sample contributes to the gradient of its weights is the sum over p of g_p a_p^T, where g_p is the gradient of the
sample's loss with respect to the output. Norms and weighted sums of such contributions can often be had without
writing them down (Goodfellow, "Efficient per-example gradient computations", 2015; Bu, Mao & Xu, "Scalable and
efficient training of large convolutional neural networks with differential privacy", NeurIPS 2022).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cloister.client.per_sample.common import finite, grain, lost, squared_norms
from cloister.client.per_sample.products import finite_product

Masks = tuple[Tensor, ...] | None
"""Which entries of each parameter of a layer count, flat; None where all do."""


class LayerGradients(Protocol):
    """The gradients of b samples with respect to the parameters of one layer: its weights, and then its bias."""

    def squared_norms(self) -> Tensor:
        """[b], in float64, of all parameters together."""

    def weighted(self, factors: Tensor) -> tuple[Tensor, ...]:
        """For each parameter, flat, the sum over samples times their factors; what is not finite counts as zero."""


@dataclass(frozen=True)
class Written:
    """One block [b, n] for each parameter, which nobody else uses: on a GPU they are cleaned in place."""

    blocks: tuple[Tensor, ...]

    def squared_norms(self) -> Tensor:
        return sum((squared_norms(block) for block in self.blocks[1:]), squared_norms(self.blocks[0]))

    def weighted(self, factors: Tensor) -> tuple[Tensor, ...]:
        if factors.is_cuda:
            return tuple(factors @ block.nan_to_num_(0.0, 0.0, 0.0) for block in self.blocks)
        return tuple(finite_product(factors[None], block)[0] for block in self.blocks)


_MOST_INPUT = 1e18
"""Inputs of a larger norm count as infinite: g, scaled down for them, would be too small a number to be precise."""


@dataclass(frozen=True)
class Outer:
    """g a^T and, for a bias, g: of one position, where the norm is a product of norms."""

    g: Tensor  # [b, o]
    a: Tensor  # [b, i]
    biased: bool
    masks: Masks

    def squared_norms(self) -> Tensor:
        if self.masks is None:
            # What is lost of one factor, the other could make large.
            outputs = squared_norms(self.g) + lost(self.g.shape[1], self.g.dtype)
            inputs = squared_norms(self.a) + (lost(self.a.shape[1], self.a.dtype) + self.biased)
            return outputs * torch.where(inputs < _MOST_INPUT**2, inputs, torch.inf)
        g, a = self.g.double().square(), self.a.double().square()
        weights = self.masks[0].double().view(g.shape[1], a.shape[1])
        squares = (g @ weights * a).sum(1)
        return squares + g @ self.masks[1].double() if self.biased else squares

    def weighted(self, factors: Tensor) -> tuple[Tensor, ...]:
        g = finite(self.g) * factors[:, None]
        weights = finite_product(g.t(), self.a).flatten()
        return (weights, g.sum(0)) if self.biased else (weights,)


@dataclass(frozen=True)
class Products:
    """The sum of g_p a_p^T over few positions: its norm is that of a product of two small matrices [p, p].

    What is summed up is computed apart from the norm. Where the terms of a sum nearly cancel, rounding may leave more
    of it than there is, so that what rounding can leave is added to the norm.
    """

    g: Tensor  # [b, o, p]
    a: Tensor  # [b, i, p]
    bias: Tensor | None  # [b, o]

    def squared_norms(self) -> Tensor:
        g, a = self.g.double(), self.a.double()
        outputs, inputs = g.mT @ g, a.mT @ a
        squares = (outputs * inputs).sum((1, 2)).clamp(min=0)
        terms = (outputs.diagonal(0, 1, 2) * inputs.diagonal(0, 1, 2)).sqrt().sum(1)
        left = (self.g.shape[2] / 2 + 1) * torch.finfo(self.g.dtype).eps + grain(self.g)
        squares = (squares.sqrt() + left * terms).square()
        return squares if self.bias is None else squares + squared_norms(self.bias)

    def weighted(self, factors: Tensor) -> tuple[Tensor, ...]:
        g = finite(self.g) * factors[:, None, None]
        weights = finite_product(g.transpose(0, 1).flatten(1), self.a.mT.flatten(0, 1)).flatten()
        return (weights,) if self.bias is None else (weights, factors @ finite(self.bias))
