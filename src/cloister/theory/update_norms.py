"""By how much updates are clipped: the alpha-bar and alpha-tilde of convergence bounds, from norms of updates.

    alpha_i     = min(1, C / ||update of client i||)
    alpha-bar   = mean of alpha_i over clients
    alpha-tilde = mean of |alpha_i - alpha-bar| over clients

The papers take the mean over all clients; norms are recorded for those that took part in a round, whose mean estimates
it. Norms are the clients' own data: what is computed from them is not private.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cloister.errors import expect, expect_positive

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class ClipFactors:
    """How much of the updates of one round is left by the clip."""

    mean: float
    """alpha-bar: 1 where nothing is clipped, near 0 where updates are far larger than the clip."""
    deviation: float
    """alpha-tilde: 0 where all updates are clipped alike, 1/2 at most."""


def clip_factors(norms: ArrayLike, clip_norm: float) -> ClipFactors:
    """alpha-bar and alpha-tilde of one round, from the norms of its updates before the clip.

    >>> clip_factors([0.1, 0.2, 0.4, 0.8], clip_norm=0.2)
    ClipFactors(mean=0.6875, deviation=0.3125)
    """
    expect_positive("clip_norm", clip_norm, "give the clip that the norms were recorded under")
    found = np.asarray(norms, dtype=np.float64).reshape(-1)
    expect(found.size > 0, "at least one norm", found.size, "a round without clients has no clip factor")
    fine = bool(np.all(np.isfinite(found)) and np.all(found >= 0))
    expect(fine, "norms >= 0 and finite", found.min(), "leave out updates that are not finite")
    factors = np.minimum(1.0, clip_norm / np.maximum(found, clip_norm))
    mean = float(factors.mean())
    return ClipFactors(mean, float(np.abs(factors - mean).mean()))


def clip_factors_by_round(rounds: Iterable[ArrayLike], clip_norm: float) -> tuple[Array, Array]:
    """The same for every round, as two arrays: what `convergence` takes.

    >>> means, deviations = clip_factors_by_round([[0.1, 0.4], [0.4, 0.4]], clip_norm=0.2)
    >>> means.tolist(), deviations.tolist()
    ([0.75, 0.5], [0.25, 0.0])
    """
    found = [clip_factors(norms, clip_norm) for norms in rounds]
    return np.array([one.mean for one in found]), np.array([one.deviation for one in found])


def expect_factors(name: str, factors: ArrayLike, *, zero: bool) -> Array:
    """Clip factors, one a round, as an array; alpha-bar is never 0."""
    found = np.asarray(factors, dtype=np.float64).reshape(-1)
    low = bool(np.all(found >= 0)) if zero else bool(np.all(found > 0))
    fine = found.size > 0 and low and bool(np.all(found <= 1))
    remedy = "give what clip_factors returns, one number a round"
    expect(fine, f"{name} between 0 and 1 in every round", found.tolist(), remedy)
    return found
