"""Noise of whole numbers, for sums that are made of whole numbers (DDGauss)."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from cloister.core import Mechanism, Sensitivity
from cloister.mechanisms.gaussian import TRUST
from cloister.privacy.events import DiscreteGaussianSum, Event, Gaussian, PoissonGaussian, Unsupported
from cloister.random.discrete_gaussian import discrete_gaussian as draws
from cloister.random.streams import Streams


def discrete_gaussian(
    noise_multiplier: float,
    scale: float,
    shares: int,
    l2: float,
    place: Literal["central", "distributed"],
) -> Mechanism:
    """Discrete Gaussian noise on integer messages of norm at most `l2`, accounted for as many numbers as they have.

    Distributed: each client adds a part of standard deviation `scale`, and what `shares` parts are worth is priced. So
    the server adds those that are missing where fewer clients came, and of more clients only so many add one: were
    there more noise whenever somebody joins, its spread would tell who did. Central: the server adds one part of scale
    sqrt(shares).

    Guarantee: a released sum carries the noise of exactly `shares` parts, the empty cohort included.
    """
    alone = place == "central"
    parts, deviation = (1, scale * math.sqrt(shares)) if alone else (shares, scale)

    def draw(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        return draws(like.numel(), deviation, streams, like.device, "noise", round, client)

    def account(event: Event, sensitivity: Sensitivity) -> Event:
        if sensitivity.length is None:
            return Unsupported("discrete noise is priced for messages whose length is known")
        if isinstance(event, (Gaussian, PoissonGaussian)):
            sampling_rate = event.sampling_rate if isinstance(event, PoissonGaussian) else 1.0
            return DiscreteGaussianSum(deviation, parts, l2, sensitivity.length, sampling_rate)
        return Unsupported("discrete noise is priced for Poisson, full and cyclic cohorts")

    settings = {"scale": deviation, "shares": parts}
    trust = TRUST[place].replace("when nobody came", "of those who are missing")
    return Mechanism(
        "discrete_gaussian",
        place,
        noise_multiplier,
        draw,
        trust,
        settings_beside=settings,
        integer=True,
        most_l2=lambda sensitivity: l2,
        most=shares,
        missing=lambda cohort: max(0, shares - cohort),
        account=account,
    )
