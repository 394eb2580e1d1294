"""Noise in a sum of many clients' messages that protects single samples: every client adds a share of it.

Each of the m members of a round adds a share of variance z^2 S^2 / (h m), where S bounds what one sample can move the
sum by and h is the fraction of members that is counted on. Any h m of the shares are together as wide as z S.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from cloister.core import Mechanism, Sensitivity
from cloister.core.mechanism import as_drawn
from cloister.errors import expect_one_of, expect_share
from cloister.privacy.events import DiscreteGaussianSum, Event, Gaussian, PoissonGaussian, Unsupported
from cloister.privacy.unit import ProtectedUnit
from cloister.random.discrete_gaussian import MOST_SIGMA, discrete_gaussian
from cloister.random.streams import Streams

Law = Literal["gaussian", "discrete"]


def sample_shares(
    noise_multiplier: float | None, honest_fraction: float = 1.0, law: Law = "gaussian", clients: int = 1
) -> Mechanism:
    """Shares of Gaussian noise, or of discrete Gaussian noise for messages of whole numbers (`transforms.to_grid`).

    m is how many take part: in a simulation those who have paid, on a node all who are asked. A sum with the messages
    of fewer than h m of these is never released (`round.close_round`), and where more take part than h m, or all are
    honest, there is more noise than is accounted. The number of shares depends on nobody's samples, so that noise
    beyond what is accounted is post-processing. The server adds none: nobody has to believe it.

    `clients`, of whom m take part in a round, is for the price of discrete noise: a sum of n discrete Gaussians of
    scale S z / sqrt(n) each is priced for the most and narrowest that can be counted on, n = ceil(h clients), which
    bounds the price of any fewer and wider ones (W of step 1 in `privacy/discrete_gaussian.py` rises with n and falls
    with the scale). A share that is too wide for a table is drawn as the sum of several, each wider than 2^16 points,
    which changes its law by less than exp(-10^10).

    Guarantee: a released sum carries shares of honest members whose variances add up to (z S)^2 at least.

    >>> shares, like, within = sample_shares(2.0, honest_fraction=0.5), torch.zeros(10_000), Sensitivity(3.0, 10_000)
    >>> one = shares.draw(2.0, Streams(0), like, within, 1, 0, 8)  # of round 1, client 0, among 8: 2 x 3 / sqrt(4)
    >>> 2.9 < float(one.std()) < 3.1
    True
    """
    expect_share("honest_fraction", honest_fraction, "1 counts on every member of a round", one=True)
    expect_one_of("noise", law, ("gaussian", "discrete"))
    counted = max(1, math.ceil(honest_fraction * clients - 1e-9))

    def width(multiplier: float, sensitivity: Sensitivity, of: int) -> float:
        return multiplier * sensitivity.unit / math.sqrt(honest_fraction * of)

    def gaussian(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        if multiplier == 0:
            return torch.zeros_like(like)
        return streams.protective_normal(like, "noise", round, client) * width(multiplier, sensitivity, of)

    def discrete(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        if multiplier == 0:
            return torch.zeros_like(like)
        wide = max(width(multiplier, sensitivity, of), _LEAST)
        parts = math.ceil((wide / MOST_SIGMA) ** 2)
        total = torch.zeros_like(like)
        for part in range(parts):
            place = (round, client, part) if part else (round, client)
            total += discrete_gaussian(like.numel(), wide / math.sqrt(parts), streams, like.device, "noise", *place)
        return total

    def account(event: Event, sensitivity: Sensitivity) -> Event:
        if sensitivity.length is None or not isinstance(event, (Gaussian, PoissonGaussian)):
            return Unsupported("discrete shares are priced for messages of a known length, and for Poisson batches")
        sampling_rate = event.sampling_rate if isinstance(event, PoissonGaussian) else 1.0
        scale = event.noise_multiplier * sensitivity.l2 / math.sqrt(counted)
        return DiscreteGaussianSum(scale, counted, sensitivity.l2, sensitivity.length, sampling_rate)

    whole = law == "discrete"
    return Mechanism(
        "discrete_gaussian" if whole else "gaussian",
        "distributed",
        noise_multiplier,
        discrete if whole else gaussian,
        _trust(honest_fraction),
        ProtectedUnit.SAMPLE,
        {"trust": "sum", "honest_fraction": honest_fraction},
        integer=whole,
        missing=lambda cohort: 0,
        account=account if whole else as_drawn,
        honest_fraction=honest_fraction,
    )


_LEAST = 0.5
"""Points of the grid: narrower shares, which would protect nobody, are made so wide."""


def _trust(honest_fraction: float) -> str:
    every = honest_fraction == 1
    some = "of all members of a round" if every else f"of at least {honest_fraction:g} of a round's members"
    honest = "every member" if every else f"{honest_fraction:g} of the members"
    return (
        f"secure aggregation that reveals the sum {some}, and nothing else; and {honest} to draw batches as declared, "
        "to clip, to add a share of the noise, and to keep batch and share secret; the server only runs it: it adds no "
        "noise, and sees nothing but sums"
    )
