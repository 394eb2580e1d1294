"""Mechanisms: noise whose scale follows from the bound on one contribution."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from cloister.errors import expect, expect_not_negative
from cloister.joints import Bound, Mechanism
from cloister.streams import Streams


def gaussian(noise_multiplier: float | None = None, place: Literal["central", "distributed"] = "central") -> Mechanism:
    """Gaussian noise of standard deviation z * S on the sum, where S bounds one client's contribution.

    Central: the server adds it once. Distributed: each of the k members of the cohort adds N(0, z^2 S^2 / k),
    k being the number that really takes part, so that the sum carries exactly z * S however many came. (A
    share computed from the EXPECTED size would leave too little noise in every small cohort.) Where nobody
    came, the server adds all of it.

    Guarantee: the released sum has noise of standard deviation z * S in every coordinate, in every round,
    the empty cohort included.
    """
    if noise_multiplier is not None:
        expect_not_negative("noise_multiplier", noise_multiplier, "give the noise's scale, or leave it out")
    expect(place in ("central", "distributed"), "place to be central or distributed", place, "choose one of them")

    def share(streams: Streams, like: Tensor, bound: Bound, round: int, client: int, of: int) -> Tensor:
        assert noise_multiplier is not None, "the noise multiplier was never calibrated"
        if noise_multiplier == 0:
            return torch.zeros_like(like)
        scale = noise_multiplier * bound.l2 / math.sqrt(of)
        return streams.protective_normal(like, "noise", round, client) * scale

    trust = (
        "the server, which sees every update and adds the noise"
        if place == "central"
        else "secure aggregation that reveals the sum alone, and every member of a cohort to add its share of the "
        "noise; the server to add the noise when nobody came"
    )
    return Mechanism("gaussian", place, noise_multiplier, lambda z: gaussian(z, place), share, trust)


def none() -> Mechanism:
    """No noise and no privacy."""
    return Mechanism(
        "none",
        "nowhere",
        0.0,
        lambda _: none(),
        lambda streams, like, *_: torch.zeros_like(like),
        "everybody who sees the model or an update",
    )
