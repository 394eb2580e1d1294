"""Gaussian noise that is correlated over rounds: less of it in the model, at the same price (DP-FTRL)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from torch import Tensor

from cloister.core import Mechanism, State
from cloister.errors import expect_count
from cloister.mechanisms.gaussian import TRUST, gaussian_share, rounded


def tree(noise_multiplier: float | None, cycle: int) -> Mechanism:
    """DP-FTRL's noise: the sum of all rounds of a cycle so far is released with the noise of a binary tree.

    Each node of a tree over the cycle's rounds has noise of its own; a prefix is covered by the nodes of its binary
    digits, so that its noise grows with the logarithm of its length and not with the length. A client takes part in
    one round of a cycle, and so in at most h = floor(log2 cycle) + 1 nodes that are ever used (one a level). Noise of
    standard deviation sqrt(h) z S a node is therefore worth one Gaussian release of multiplier z. Every cycle starts a
    tree of its own (Kairouz et al. 2021 call this restarting).

    On a grid, the noise of every node is rounded exactly. All that is released is a sum of nodes, each with the sum of
    its rounds, so a function of their (sums + noise), rounded: post-processing of the mechanism that is priced.
    """
    expect_count("cycle", cycle, "the number of rounds in which everybody has a turn")
    levels = cycle.bit_length()

    def correlate(drawn: Tensor, round: int, state: State, width: float = math.sqrt(levels)) -> tuple[Tensor, State]:
        place = (round - 1) % cycle + 1
        level = (place & -place).bit_length() - 1  # the node that ends here and is as large as can be
        node = width * drawn
        noise = node
        for below in range(level):  # smaller nodes, which the new one takes the place of
            noise = noise - state.get(f"node {below}", 0.0)
        return noise, {**state, f"node {level}": node}

    def on_grid(mechanism: Mechanism, grid: float) -> Mechanism:
        """Drawn as wide as a node's noise is: what is multiplied afterwards would leave the grid."""
        return replace(rounded(mechanism, grid, math.sqrt(levels)), correlate=partial(correlate, width=1.0))

    return Mechanism(
        "tree",
        "central",
        noise_multiplier,
        gaussian_share,
        TRUST["central"],
        settings_beside={"cycle": cycle, "levels": levels},
        correlate=correlate,
        min_separation=cycle,
        on_grid=on_grid,
    )


def banded(noise_multiplier: float | None, band: int) -> Mechanism:
    """Noise that cancels over rounds: with C a banded lower-triangular matrix, C^-1 z in place of z.

    Releasing x + C^-1 z is releasing C x + z. C has the first `band` coefficients of (1 - t)^(-1/2), the square root of
    the matrix of prefix sums, scaled to columns of norm 1. A client's turns are at least `band` rounds apart, so that
    its columns do not overlap, and each turn is worth one Gaussian release of multiplier z (Choquette-Choo et al.
    2023; Kalinin & Lampert 2024 for the coefficients). It has no grid: C x is on none, whatever x is on.
    """
    expect_count("band", band, "over how many rounds noise cancels; 1 is independent noise")
    c = square_root(band)

    def correlate(drawn: Tensor, round: int, state: State) -> tuple[Tensor, State]:
        noise = drawn
        for back in range(1, min(band, len(state) + 1)):
            noise = noise - c[back] * state[f"noise {back}"]
        noise = noise / c[0]
        older = {f"noise {back + 1}": state[f"noise {back}"] for back in range(1, min(band - 1, len(state) + 1))}
        return noise, {**older, **({"noise 1": noise} if band > 1 else {})}

    return Mechanism(
        "banded",
        "central",
        noise_multiplier,
        gaussian_share,
        TRUST["central"],
        settings_beside={"band": band},
        correlate=correlate,
        min_separation=band,
    )


def square_root(band: int) -> list[float]:
    """The first coefficients of (1 - t)^(-1/2), binom(2j, j) / 4^j, scaled to norm 1.

    >>> [round(c, 4) for c in square_root(3)]
    [0.848, 0.424, 0.318]
    """
    c = [1.0]
    for j in range(1, band):
        c.append(c[-1] * (2 * j - 1) / (2 * j))
    norm = math.sqrt(sum(value * value for value in c))
    return [value / norm for value in c]
