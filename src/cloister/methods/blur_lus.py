"""BLUR and LUS: local training that loses less to clipping and noise.

Cheng, Wang, Zhang & Chen, "Differentially private federated learning with local regularization and sparsification",
CVPR 2022.

    BLUR  local step: g = gradient of f_i(w) + blur_lambda 1{||w - w0|| > S} (w - w0)
    LUS   of every layer keep the coordinates with the largest |gradient of f_i(w) * (w - w0)|, all others become 0
    then  total = sum_i u_i min(1, S/||u_i||) + N(0, z^2 S^2 I);  w <- w + total / (q N)

BLUR pulls a client back once it is further than the clipping radius S from where it started; LUS keeps, in every
layer, the coordinates whose removal would change the client's loss most, |gradient * update|. Both happen on the
client before the clip, and so cost no privacy. The mask is private: noise stays on all coordinates.

The paper averages over a cohort's actual size |P_t|, and prices Poisson cohorts of which nobody knows that. Who divides
by it releases it, and given the size a cohort is uniform among those of that size: mode = "as_published" does so, at
the price of such cohorts, for replacing a client (`round/bind.py`). The default divides by the expected size. The
paper's DP-FedAvg is blur with blur_lambda = 0.
"""

from __future__ import annotations

from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD, gradients
from cloister.core import LocalRule, Method
from cloister.core.arguments import flat_arguments
from cloister.errors import expect_share
from cloister.methods.arguments import (
    ClipNorm,
    NoiseMultiplier,
    NoiseOn,
    NoisePlace,
    Scope,
    Server,
    Ties,
    expect_noise_on_all,
)
from cloister.methods.published import Mode, as_published, claim
from cloister.methods.registry import NOISY_SUM, register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers

_PUBLISHED = "the average over the cohort's actual size, which is released and priced, with the paper's claim beside"

BlurStrength = Annotated[float, "strength of BLUR's pull back to the clipping radius"]
Sparsity = Annotated[float, "fraction of every layer that LUS drops"]
Importance = Annotated[client.Importance, "LUS: the gradient over all of a client's data, or over its last batch"]


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=_PUBLISHED)
@flat_arguments
def blur(
    clip_norm: ClipNorm,
    blur_lambda: BlurStrength = 0.4,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """DP-FedAvg with Bounded Local Update Regularization of strength `blur_lambda`. Guarantee: that of DP-FedAvg."""
    rule = client.sgd(training=training, gradient=gradients.blur(blur_lambda, clip_norm))
    return _private("blur", rule, clip_norm, weighting, noise_multiplier, noise, mode, server)


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=_PUBLISHED)
@flat_arguments
def lus(
    clip_norm: ClipNorm,
    sparsity: Sparsity = 0.7,
    importance: Importance = "all",
    ties: Ties = "keep",
    scope: Scope = "layer",
    noise_on: NoiseOn = "all",
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """DP-FedAvg with Local Update Sparsification: `sparsity` of every layer goes. Guarantee: that of DP-FedAvg."""
    expect_noise_on_all(noise_on)
    rule = client.sgd(training=training)
    rule = _sparse(rule, sparsity, importance, ties, scope)
    return _private("lus", rule, clip_norm, weighting, noise_multiplier, noise, mode, server)


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=_PUBLISHED)
@flat_arguments
def blur_lus(
    clip_norm: ClipNorm,
    blur_lambda: BlurStrength = 0.4,
    sparsity: Sparsity = 0.7,
    importance: Importance = "all",
    ties: Ties = "keep",
    scope: Scope = "layer",
    noise_on: NoiseOn = "all",
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """Both together, the paper's method. Guarantee: that of DP-FedAvg."""
    expect_noise_on_all(noise_on)
    rule = client.sgd(training=training, gradient=gradients.blur(blur_lambda, clip_norm))
    rule = _sparse(rule, sparsity, importance, ties, scope)
    return _private("blur_lus", rule, clip_norm, weighting, noise_multiplier, noise, mode, server)


def _sparse(rule: LocalRule, sparsity: float, importance: client.Importance, ties: Ties, scope: Scope) -> LocalRule:
    expect_share("sparsity", sparsity, "0.7 is the paper's, and something must be kept", zero=True)
    return client.keep_important(rule, 1 - sparsity, importance, ties, scope)


def _private(
    name: str,
    rule: LocalRule,
    clip_norm: ClipNorm,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier,
    noise: NoisePlace,
    mode: Mode,
    server: Server,
) -> Method:
    return Method(
        name=name,
        local=rule,
        transform=weighting.after(transforms.clip_l2(clip_norm)),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        claims=claim(mode),
        released=_RELEASED if as_published(mode) else Method.released,
        notes=weighting.notes,
        average_over="actual" if as_published(mode) else "expected",
    )


_RELEASED = (
    "the noisy sum of the clients' updates and the actual size of the cohort in every round, and so every model "
    "computed from these"
)
