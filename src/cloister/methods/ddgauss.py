"""DDGauss: whole numbers, modular sums and discrete noise, for secure aggregation.

Kairouz, Liu & Steinke, "The distributed discrete Gaussian mechanism for federated learning with secure aggregation",
ICML 2021.

    clip -> random signs and Walsh-Hadamard -> a grid -> conditional rounding -> discrete Gaussian shares -> sum mod 2^b

The grid is as fine as `bits` allow for the sum to wrap around seldom; what rounding adds to a client's norm, and what a
sum of discrete Gaussians differs from one, are in the price (`privacy/discrete_gaussian.py`, with the proof).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import BindContext, Method, Transform
from cloister.core.arguments import flat_arguments
from cloister.errors import expect, expect_count
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, NoisePlace, Server
from cloister.methods.registry import register
from cloister.methods.weighting import ClientWeights, refuse_weights
from cloister.privacy.discrete_gaussian import grid
from cloister.server import optimizers
from cloister.transforms.hadamard import padded


@register("Kairouz, Liu & Steinke, ICML 2021", "noisy modular sum of each round")
@flat_arguments
def ddgauss(
    clip_norm: ClipNorm,
    bits: Annotated[int, "bits of a number on the wire"] = 16,
    deviations: Annotated[float, "standard deviations of a sum's coordinate that the grid has room for"] = 4.0,
    beta: Annotated[float, "probability with which rounding may exceed its bound, and is done again"] = math.exp(-0.5),
    *,
    training: LocalSGD,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "distributed",
    server: Server = None,
    client_weights: ClientWeights = "equal",
) -> Method:
    """DP-FedAvg with distributed discrete noise. `noise_multiplier` is that of the whole noise, before rounding.

    Guarantee: the modular sum of every round is differentially private for a client and all its data, at the epsilon
    that the run's certificate states, as long as nobody sees single messages.
    """
    refuse_weights(client_weights, "ddgauss", _NO_WEIGHTS)
    expect_count("bits", bits, "16 is usual", least=2)
    expect(bits <= 32, "bits <= 32", bits, "16 is usual")

    def bind(method: Method, context: BindContext) -> Method:
        size, shares = padded(context.layout.size), math.ceil(context.expected)
        z = method.mechanism.noise_multiplier
        if not z:  # without noise the grid is that of a little of it
            found = grid(1e-3, clip_norm, shares, size, bits, deviations, beta)
            silent = mechanisms.gaussian(0.0)
            return replace(method, transform=_transform(clip_norm, found.scale, found.l2, bits), mechanism=silent)
        found = grid(z, clip_norm, shares, size, bits, deviations, beta)
        wraps = (
            f"modular sums: a coordinate of a round's sum wraps around with probability at most {found.overflow:.2g}, "
            "where rotated sums are sub-Gaussian; that spoils the model, never privacy"
        )
        return replace(
            method,
            transform=_transform(clip_norm, found.scale, found.l2, bits),
            mechanism=mechanisms.discrete_gaussian(z, found.sigma, shares, found.l2, noise),
            notes=(wraps,),
            released="the noisy modular sum of the clients' integers in every round, and models computed from it",
        )

    return Method(
        name="ddgauss",
        local=client.sgd(training=training),
        transform=transforms.clip_l2(clip_norm),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        bind=bind,
    )


def _transform(clip_norm: float, scale: float, l2: float, bits: int) -> Transform:
    return transforms.chain(transforms.clip_l2(clip_norm), transforms.quantize(scale, l2, bits))


_NO_WEIGHTS = (
    "whole numbers are sent, on a grid whose room is counted for clients of equal weight, and no sum of unequal ones "
    "was analyzed"
)
