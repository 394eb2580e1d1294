"""DP-FedAvg whose clip follows a quantile of the updates' norms, privately.

Andrew, Thakkar, McMahan & Ramaswamy, "Differentially private learning with adaptive clipping", NeurIPS 2021.

    total = sum_i u_i min(1, S/||u_i||) + noise;  share = (sum_i (1{||u_i|| <= S} - 1/2) + noise) / (q N) + 1/2
    S <- S exp(-clip_lr (share - quantile))

Each client also says whether its update was within the clip; the noisy share of those moves the clip. The bit shares
the noise's room with the update, (2 s_b)^-2 + z_u^-2 = z^-2: what is priced is z, for both together. By default the
noise s_b on the count is a twentieth of the cohort, and at least 2 z.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import BindContext, Method, Transform
from cloister.core.arguments import flat_arguments
from cloister.errors import expect, expect_positive
from cloister.methods.arguments import ClipLearningRate, NoiseMultiplier, NoisePlace, Quantile, Server
from cloister.methods.registry import register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers


@register("Andrew et al., NeurIPS 2021", "noisy sum and count of each round")
@flat_arguments
def adaptive_clipping(
    clip_norm: Annotated[float, "L2 norm to which a client's whole update is clipped at the start"] = 0.1,
    quantile: Quantile = 0.5,
    clip_lr: ClipLearningRate = 0.2,
    count_noise: Annotated[
        float | None, "noise on the count within the clip, in noise multipliers (by default a twentieth of the cohort)"
    ] = None,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    server: Server = None,
) -> Method:
    """DP-FedAvg with a clip that starts from `clip_norm` and follows a quantile of norms.
    Guarantee: that of DP-FedAvg.
    """

    if count_noise is not None:
        expect_positive("count_noise", count_noise, "it is a multiple of the noise multiplier")
        expect(count_noise > 0.5, "count_noise > 0.5", count_noise, "less would leave no noise for the updates")

    def clipping(bit_weight: float) -> Transform:
        """Updates are weighted; every client is one in the count of those within the clip."""
        return weighting.after(transforms.adaptive_clip(clip_norm, quantile, clip_lr, bit_weight), spared=1)

    def bind(method: Method, context: BindContext) -> Method:
        z = method.mechanism.noise_multiplier or 0.0
        on_count = max(context.expected / 20, 2 * z) if count_noise is None else count_noise * z
        # s_b = z sqrt(1 + weight^2/4) / weight, solved for the weight; without noise any weight serves
        weight = z / math.sqrt(on_count**2 - z**2 / 4) if z else 1.0
        return replace(method, transform=clipping(weight))

    return Method(
        name="adaptive_clipping",
        local=client.sgd(training=training),
        transform=clipping(1.0),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        released="the noisy sum of the clipped updates and the noisy count of those within the clip, in every round",
        bind=bind,
        notes=weighting.notes,
    )
