"""From sums of gradients to whole numbers that can be added modulo a power of two, and back."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cloister.core import Context, Layout, Sensitivity, State, Transform
from cloister.errors import expect_count, expect_positive

FINE = 128
"""A clipped gradient is so many times sqrt(numbers) points of the grid long, and rounding adds 1/128 to what a sample
can move."""


def to_grid(points: float, bits: int = 32) -> Transform:
    """Round every number to the nearest of so many `points` per unit; the server adds up modulo 2^bits.

    Guarantee: where one sample more or less moves an update of n numbers by a vector g, it moves the whole numbers by a
    vector of L2 norm at most points |g| + sqrt(n). Proof: rounding moves a number by 1/2 at most, so that two numbers
    a and b become whole numbers with |round(a) - round(b) - (a - b)| <= 1; over n coordinates these errors have norm
    sqrt(n) at most, and the triangle inequality does the rest. It takes no chance and no bound on the update, which is
    a sum over many samples. Modular arithmetic is post-processing of the noisy sum.
    """
    expect_positive("points", points, "how many points of the grid a unit has")
    expect_count("bits", bits, "the bits of a number on the wire", least=2, most=48)

    def encode(update: Tensor, context: Context) -> Tensor:
        return (update.double() * points).round().clamp(-_MOST, _MOST).to(torch.int64)

    def decode(total: Tensor, context: Context, state: State) -> tuple[Tensor, State]:
        half = 1 << (bits - 1)
        wrapped = ((total + half) & (2 * half - 1)) - half
        return (wrapped.double() / points).to(context.w.dtype), {}

    def sensitivity(known: Sensitivity, layout: Layout) -> Sensitivity:
        if known.length is None:  # nothing is known of so many roundings
            return Sensitivity(integer=True)
        return Sensitivity(points * known.l2 + math.sqrt(known.length), known.length, integer=True)

    settings = {"points": points, "bits": bits}
    return Transform("to_grid", settings, encode, sensitivity, decode, bits=bits, bounds_distance=True)


_MOST = 2.0**52
"""A whole number that is exact in float64; sums of very many stay within 64 bits. (Cutting off moves no two numbers
further apart.)"""
