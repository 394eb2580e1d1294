"""DP-FedSAM: clients look for flat minima, whose updates are smaller and survive clipping and noise better.

Shi, Liu, Wei, Shen, Wang & Tao, "Make landscape flatter in differentially private federated learning", CVPR 2023,
and the journal version with DP-FedSAM-top_k.

    local step: w <- w - lr * gradient of f_i(w + e)
    plain  e = rho g / ||g||        adaptive  e = rho w^2 g / || |w| g ||, elementwise, with g = gradient of f_i(w)

A step goes down the gradient at w + e, where e = rho g/||g|| leads uphill (SAM); the authors' code runs the adaptive
form, which is the default here, with momentum 0.5, weight decay 5e-4 and a learning rate that falls by 0.998 a round.

top_k keeps a fraction of the coordinates, in one of three places:
    A  of each client's update before the clip, with noise on all coordinates (the default)
    B  of the noisy sum, by the server
    C  of each client's noisy update, as printed. The server's sum is then no function of the noisy sum that the
       paper's proof speaks of: nothing is proven of it, and only what protects a single message is certified.
The paper says "in each layer" (section 3.3) and "of all parameters" (section 4): scope = "layer" or "model". A third
reading, "no noise needs to be added to the sparse weight positions" (section 2), is refused (noise_on = "kept"): it
tells which coordinates a client kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from cloister import client, mechanisms, transforms
from cloister.client import gradients
from cloister.client.training import BatchSize, LearningRateDecay, LocalSGD, Momentum, WeightDecay
from cloister.core import LocalRule, Method
from cloister.core.arguments import flat_arguments
from cloister.errors import expect_one_of
from cloister.methods.arguments import (
    ClipNorm,
    Keep,
    NoiseMultiplier,
    NoiseOn,
    NoisePlace,
    Scope,
    Server,
    Ties,
    expect_noise_on_all,
)
from cloister.methods.published import EACH_TENSOR, Mode, claim, clipping
from cloister.methods.registry import NOISY_SUM, register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers

Rho = Annotated[float, "how far SAM looks for the worst place nearby"]
Sam = Annotated[Literal["plain", "adaptive"], "plain or adaptive sharpness-aware steps"]


@dataclass(frozen=True)
class _Training(LocalSGD):
    """As the authors ran it."""

    batch_size: BatchSize = 32
    momentum: Momentum = 0.5
    weight_decay: WeightDecay = 5e-4
    lr_decay: LearningRateDecay = 0.998


@register("Shi et al., CVPR 2023", NOISY_SUM, published=EACH_TENSOR)
@flat_arguments
def dp_fedsam(
    clip_norm: ClipNorm = 0.2,
    rho: Rho = 0.5,
    sam: Sam = "adaptive",
    *,
    training: _Training,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """DP-FedAvg with sharpness-aware local steps. Guarantee: that of DP-FedAvg."""
    return Method(
        name="dp_fedsam",
        local=_rule(rho, sam, training),
        transform=weighting.after(clipping(clip_norm, mode)),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        claims=claim(mode),
        notes=weighting.notes,
    )


@register("Shi et al., CVPR 2023", f"{NOISY_SUM} (variant C: messages)", published=EACH_TENSOR)
@flat_arguments
def dp_fedsam_top_k(
    clip_norm: ClipNorm = 0.2,
    rho: Rho = 0.5,
    sam: Sam = "adaptive",
    keep_fraction: Keep = 0.4,
    variant: Annotated[
        Literal["A", "B", "C"],
        "where top-k happens: A before the clip, B on the noisy sum, C after each client's noise (no proof)",
    ] = "A",
    ties: Ties = "keep",
    scope: Scope = "layer",
    noise_on: NoiseOn = "all",
    *,
    training: _Training,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """DP-FedSAM that keeps the largest coordinates of every layer, or of all parameters (`scope`).

    Guarantee: that of DP-FedAvg (variants A and B).
    """
    expect_noise_on_all(noise_on)
    expect_one_of("variant", variant, ("A", "B", "C"), "A is the default")
    rule = _rule(rho, sam, training)
    clipped = clipping(clip_norm, mode)
    place = {
        "A": (client.keep_largest(rule, keep_fraction, ties, scope), clipped),
        "B": (rule, transforms.chain(clipped, transforms.top_k_of_sum(keep_fraction, ties, scope))),
        "C": (rule, transforms.chain(clipped, transforms.top_k_after_noise(keep_fraction, ties, scope))),
    }
    as_printed = variant == "C"
    return Method(
        name="dp_fedsam_top_k",
        local=place[variant][0],
        transform=weighting.after(place[variant][1]),
        mechanism=mechanisms.gaussian(noise_multiplier, "distributed" if as_printed else noise),
        server=server or optimizers.sgd(),
        claims=claim(mode),
        local_only=as_printed,
        released="every client's noisy, sparsified update, by itself" if as_printed else Method.released,
        notes=(*((_NO_PROOF,) if as_printed else ()), *weighting.notes),
        trust="every client to add its own noise; the server may see every message" if as_printed else None,
        adjacency="replace one client's data by any others; every message by itself" if as_printed else None,
    )


_NO_PROOF = (
    "the sum: no central guarantee is proven for top-k after each client's noise, because what the server adds up is "
    "no function of the noisy sum; the epsilon here is the local one, of a single client's messages under its own "
    "share of the noise, without amplification"
)


def _rule(rho: float, sam: str, training: LocalSGD) -> LocalRule:
    expect_one_of("sam", sam, ("plain", "adaptive"), "the authors ran the adaptive form")
    return client.sgd(training=training, gradient=gradients.sam(rho, sam == "adaptive"))
