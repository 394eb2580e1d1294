"""DP-FedAvg: FedAvg with client-level privacy.

McMahan, Ramage, Talwar & Zhang, "Learning differentially private recurrent language models", ICLR 2018.

    u_i = local training;  total = sum_i w_i u_i min(1, S/||u_i||) + N(0, z^2 S^2 I);  w <- w + total / (q W)

Weights w_i are 1, and W the number of clients N; or, with client_weights = "size", w_i = min(n_i / weight_cap, 1) and
W = N * mean_weight, a declared constant: the paper's estimator f_f. No weight is above 1, so that noise and price stay.
With clipping = "normalize" every update has norm S, shorter ones too: u_i S/||u_i||, at the same noise and price.
"""

from __future__ import annotations

from typing import Annotated, Literal

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.errors import expect, expect_one_of
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, NoisePlace, Server
from cloister.methods.published import EACH_TENSOR, Mode, as_published, claim
from cloister.methods.published import clipping as published_clipping
from cloister.methods.registry import NOISY_SUM, register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers


@register("McMahan et al., ICLR 2018", NOISY_SUM, published=EACH_TENSOR)
@flat_arguments
def dp_fedavg(
    clip_norm: ClipNorm,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
    clipping: Annotated[
        Literal["clip", "normalize"],
        "clip: longer updates are scaled down to clip_norm; normalize: all are scaled to it, up or down",
    ] = "clip",
) -> Method:
    """FedAvg whose updates are clipped as a whole and whose sum is released with Gaussian noise.

    Guarantee: the noisy sum of every round is differentially private for a client and all its data, at the
    epsilon that the run's certificate states. `noise_multiplier` left out means: calibrate it to the target.
    """
    expect_one_of("clipping", clipping, ("clip", "normalize"))
    normalized = clipping == "normalize"
    expect(not (normalized and as_published(mode)), "clipping = clip, as published", clipping, "leave one of them out")
    bounded = transforms.normalize_l2(clip_norm) if normalized else published_clipping(clip_norm, mode)
    return Method(
        name="dp_fedavg",
        local=client.sgd(training=training),
        transform=weighting.after(bounded),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        claims=claim(mode),
        notes=weighting.notes,
    )
