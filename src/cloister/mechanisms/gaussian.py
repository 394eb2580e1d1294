"""Independent Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from cloister.core import Mechanism, Sensitivity
from cloister.core.noise_grid import points_of
from cloister.errors import CloisterError, expect_one_of
from cloister.privacy.unit import ProtectedUnit
from cloister.random.rounded_normal import rounded_normal
from cloister.random.streams import Streams


def gaussian(noise_multiplier: float | None = None, place: Literal["central", "distributed"] = "central") -> Mechanism:
    """Gaussian noise of standard deviation z * S on the sum, where S bounds one client's contribution.

    Central: the server adds it once. Distributed: each of the k members of the cohort adds N(0, z^2 S^2 / k),
    k being the number that really takes part, so that the sum carries exactly z * S however many came. (A
    share computed from the EXPECTED size would leave too little noise in every small cohort.) Where nobody
    came, the server adds all of it.

    Guarantee: the released sum has noise of standard deviation z * S in every coordinate, in every round,
    the empty cohort included. On a grid, central noise is the exact rounding of such noise. (The sum of shares that
    are rounded one by one is not a rounding of their sum, so that distributed noise has no grid.)
    """
    expect_one_of("noise", place, ("central", "distributed"))
    on_grid = rounded if place == "central" else None
    return Mechanism("gaussian", place, noise_multiplier, gaussian_share, TRUST[place], on_grid=on_grid)


def rounded(mechanism: Mechanism, grid: float, times: float = 1.0) -> Mechanism:
    """The same with noise `times` as wide that is drawn as whole multiples of a grid."""

    def draw(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        if multiplier == 0:
            return torch.zeros_like(like)
        wider = times * _apart(like.numel(), sensitivity, grid)
        points = points_of(multiplier * sensitivity.unit, grid, wider)
        return (rounded_normal(like.numel(), points, streams, "noise", round, client) * grid).view(like.shape).to(like)

    return replace(_with_grid(mechanism, grid), draw=draw)


def _with_grid(mechanism: Mechanism, grid: float) -> Mechanism:
    settings = {**mechanism.settings_beside, "grid": grid}
    return replace(mechanism, settings_beside=settings, grid=grid, on_grid=None)


def _apart(numbers: int, sensitivity: Sensitivity, grid: float) -> float:
    """How much wider noise is where the price counts on messages that lie closer together than twice their bound:
    rounding, and shortening what floating point made too long, can move two of them apart."""
    if sensitivity.replace_l2 is None:
        return 1.0
    moved = 4 * math.sqrt(numbers) * grid + 2.0**-27 * sensitivity.l2
    return 1 + moved / sensitivity.replaced


def in_steps(noise_multiplier: float | None = None) -> Mechanism:
    """Gaussian noise in every step of a client's own training, of standard deviation z times a sample's clip.

    The local rule takes it and says what a step is worth. Every message is private by itself, so nothing is added
    on its way; `noise_multiplier` is that of the gradients. On a grid, every step's noise is rounded exactly, and so
    is the sum that it is added to (`client/dp_sgd.py`).
    """
    trust, unit = TRUST["local"], ProtectedUnit.SAMPLE
    return Mechanism("gaussian", "local", noise_multiplier, _nothing_to_share, trust, unit, on_grid=_with_grid)


def _nothing_to_share(
    multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
) -> Tensor:
    raise CloisterError("Expected noise in the clients' steps alone, found that a share was asked for: draw none.")


def none() -> Mechanism:
    """No noise and no privacy."""
    return Mechanism("none", "nowhere", 0.0, gaussian_share, "everybody who sees the model or an update")


TRUST = {
    "central": "the server, which sees every update and adds the noise",
    "local": "nobody but the client itself: its updates are private before they leave it, and the server, other "
    "clients and whoever listens may see them all",
    "distributed": "secure aggregation that reveals the sum alone (to nobody else, and no single message), and every "
    "member of a cohort to add its share of the noise and keep it secret; members know the cohort's size and their own "
    "shares, so against them, or a server that colludes with them, less noise is left and sampling hides nothing; the "
    "server adds the noise when nobody came",
}


def gaussian_share(
    multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
) -> Tensor:
    if multiplier == 0:
        return torch.zeros_like(like)
    scale = multiplier * sensitivity.unit / math.sqrt(of)
    return streams.protective_normal(like, "noise", round, client) * scale
