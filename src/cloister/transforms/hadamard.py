"""The Walsh-Hadamard rotation, which spreads a vector evenly over its coordinates, and rounding within a bound.

Both are pure functions for `torch.func.vmap`, tracing and capture: what happens does not depend on the data.
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from cloister.errors import expect, expect_count, expect_positive
from cloister.random.streams import fold, uniform_pairs

_BLOCK = 6  # matrices of 2^5 or 2^6 keep a core's multipliers busy; with larger ones there is more to multiply
_EXACT = 2**53  # whole numbers up to here are exact in float64, and so are their sums


def padded(d: int) -> int:
    """The power of two that d coordinates are padded to.

    >>> padded(1), padded(5), padded(1018174) == 2**20
    (1, 8, True)
    """
    expect_count("d", d, "there must be something to rotate")
    return 1 << (d - 1).bit_length()


def hadamard(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform along the last dimension, a power of two; its own inverse.

    The matrix is a Kronecker product of small ones, so the vector becomes a tensor with an axis for each of them, and
    every axis is multiplied by its own: O(d log d), in a few matrix products.

    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    d = x.shape[-1]
    expect(padded(d) == d, "a power of two", d, "pad with zeros to hadamard.padded(d)")
    lead, levels, done = x.shape[:-1], d.bit_length() - 1, 0
    y = x.double() if x.is_cuda else x  # on a GPU, products of float32 may be told to be coarse (core/precision.py)
    while done < levels:
        size = -(-(levels - done) // -(-(levels - done) // _BLOCK))  # as even as can be
        after = levels - done - size
        if after:
            y = _matrix(size, y) @ y.reshape(*lead, 2**done, 2**size, 2**after)
        else:
            y = y.reshape(*lead, 2**done, 2**size) @ (_matrix(size, y) * d**-0.5)
        done += size
    return y.reshape(x.shape).to(x.dtype)


def _matrix(levels: int, like: Tensor) -> Tensor:
    """Sylvester's: the sign is the parity of the bits that row and column share. Made in place: nothing is copied."""
    places = torch.arange(2**levels, device=like.device)
    shared = places[:, None] & places
    ones = torch.stack([(shared >> bit) & 1 for bit in range(levels)]).sum(0)
    return (1 - 2 * (ones & 1)).to(like.dtype)


def round_within(x: Tensor, key: Tensor, bound: float, tries: int = 2) -> Tensor:
    """x [d] as whole numbers (int64), each one of its two neighbors and right in the mean, in L2 norm at most `bound`.

    What exceeds the bound is rounded again: the tries share one uniform draw for each number, turned by 1/tries, which
    rounds down what was just rounded up. Where every try fails, x is cut off toward zero, which makes no number larger
    (a bias, but a rare one: see `privacy.discrete.grid` for a bound that few roundings exceed).

    Guarantee: the result's norm is at most `bound`, for any x at all. An x whose own norm is beyond the bound even
    when cut off, or is not a number, becomes 0. The sum of squares is exact up to 2^53, beyond it errs on the safe
    side. The price of the release (`privacy.discrete`) asks for nothing else: whatever whole vector within the bound
    a client sends is hidden by the noise, so the draws here protect nobody and need not be secret.
    """
    expect_positive("bound", bound, "give the bound that the noise was scaled to")
    expect_count("tries", tries, "round at least once")
    square = Fraction(bound) ** 2
    most = math.floor(square) if square < _EXACT else float(square) * (1 - 1e-9)
    floor = x.floor()
    part = x - floor
    draws = uniform_pairs(fold(key, 0), x.shape[0])
    # From the last resort to the first choice: each takes the place of the one before, where it fits.
    choices = [x.trunc(), *(floor + ((draws + number / tries) % 1 < part) for number in reversed(range(tries)))]
    found = torch.zeros_like(x)
    for choice in choices:
        fits = choice.double().square().sum() <= most
        found = torch.where(fits, choice, found)
    return found.to(torch.int64)
