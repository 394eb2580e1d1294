"""Which coordinates of a vector are kept: a fraction of every layer, or of all together, with the largest scores."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from cloister.core.objective import Layout
from cloister.errors import expect_one_of, expect_probability

Ties = Literal["keep", "first"]
"""Where scores tie at the border: keep all of them, or exactly as many as asked for, the first ones first."""


Scope = Literal["layer", "model"]
"""Among which coordinates the largest are sought: those of each layer by itself, or those of the whole model."""


def expect_fraction(name: str, keep_fraction: float) -> None:
    """Refuse what is no fraction of a layer."""
    expect_probability(name, keep_fraction, "the fraction of the coordinates that is kept")


def expect_ties(ties: Ties) -> None:
    """Refuse what is no way to break ties."""
    expect_one_of("ties", ties, get_args(Ties))


def expect_scope(scope: Scope) -> None:
    """Refuse what is no set of coordinates to compare."""
    expect_one_of("scope", scope, get_args(Scope), "layer keeps a fraction of every layer, model one of all parameters")


def beside_default(scope: Scope, default: Scope = "layer") -> dict[str, str]:
    """The scope as a setting of a part, where it is not the part's default: older descriptions have none."""
    return {} if scope == default else {"scope": scope}


def kept_of(size: int, keep_fraction: float) -> int:
    """How many of `size` coordinates are kept: the fraction, rounded half up, and at least one.

    >>> kept_of(10, 1 - 0.7), kept_of(5, 0.5), kept_of(3, 0.1)
    (3, 3, 1)
    """
    return max(1, math.floor(round(keep_fraction * size, 9) + 0.5))  # (1 - 0.7) * 10 is a little more than 3


def largest(
    scores: Tensor, layout: Layout, keep_fraction: float, ties: Ties = "keep", scope: Scope = "layer"
) -> Tensor:
    """A mask [d] of the coordinates with the largest scores, in each layer or in the whole model."""
    if scope == "model":
        return _largest_of(scores, kept_of(scores.shape[0], keep_fraction), ties)
    return torch.cat(
        [_largest_of(piece, kept_of(piece.shape[0], keep_fraction), ties) for piece in layout.pieces(scores)]
    )


def _largest_of(scores: Tensor, count: int, ties: Ties) -> Tensor:
    if count == scores.shape[0]:
        return torch.ones_like(scores, dtype=torch.bool)
    if ties == "keep":
        return scores >= torch.topk(scores, count, sorted=False).values.amin()
    order = torch.sort(scores, descending=True, stable=True).indices
    places = torch.zeros_like(order).scatter(0, order, torch.arange(scores.shape[0], device=scores.device))
    return places < count
