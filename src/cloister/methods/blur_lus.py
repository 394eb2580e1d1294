"""BLUR and LUS: local training that loses less to clipping and noise.

Cheng, Wang, Zhang & Chen, "Differentially private federated learning with local regularization and sparsification",
CVPR 2022.

BLUR pulls a client back once it is further than the clipping radius S from where it started; LUS keeps, in every
layer, the coordinates whose removal would change the client's loss most, |gradient * update|. Both happen on the
client before the clip, and so cost no privacy. The mask is private: noise stays on all coordinates.

The paper averages over the cohort's actual size; here, as everywhere, the denominator is the expected size.
"""

from __future__ import annotations

from typing import Annotated

from cloister import gradients, local, mechanisms, servers, transforms
from cloister.errors import expect_share
from cloister.joints import LocalRule, Method
from cloister.joints.arguments import flat_arguments
from cloister.local import LocalSGD
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, NoisePlace, Server, Ties
from cloister.methods.published import ONLY_THE_CLAIM, Mode, claim
from cloister.methods.registry import NOISY_SUM, register

BlurStrength = Annotated[float, "strength of BLUR's pull back to the clipping radius"]
Sparsity = Annotated[float, "fraction of every layer that LUS drops"]
Importance = Annotated[local.Importance, "LUS: the gradient over all of a client's data, or over its last batch"]


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
@flat_arguments
def blur(
    clip: ClipNorm,
    blur: BlurStrength = 0.4,
    *,
    training: LocalSGD,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "honest",
    server: Server = None,
) -> Method:
    """DP-FedAvg with Bounded Local Update Regularization of strength `blur`. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(training=training, gradient=gradients.blur(blur, clip))
    return _private("blur", rule, clip, noise_multiplier, noise, mode, server)


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
@flat_arguments
def lus(
    clip: ClipNorm,
    sparsity: Sparsity = 0.7,
    importance: Importance = "all",
    ties: Ties = "keep",
    *,
    training: LocalSGD,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "honest",
    server: Server = None,
) -> Method:
    """DP-FedAvg with Local Update Sparsification: `sparsity` of every layer goes. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(training=training)
    rule = _sparse(rule, sparsity, importance, ties)
    return _private("lus", rule, clip, noise_multiplier, noise, mode, server)


@register("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
@flat_arguments
def blur_lus(
    clip: ClipNorm,
    blur: BlurStrength = 0.4,
    sparsity: Sparsity = 0.7,
    importance: Importance = "all",
    ties: Ties = "keep",
    *,
    training: LocalSGD,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "honest",
    server: Server = None,
) -> Method:
    """Both together, the paper's method. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(training=training, gradient=gradients.blur(blur, clip))
    rule = _sparse(rule, sparsity, importance, ties)
    return _private("blur_lus", rule, clip, noise_multiplier, noise, mode, server)


def _sparse(rule: LocalRule, sparsity: float, importance: local.Importance, ties: Ties) -> LocalRule:
    expect_share("sparsity", sparsity, "0.7 is the paper's, and something must be kept", zero=True)
    return local.keep_important(rule, 1 - sparsity, importance, ties)


def _private(
    name: str,
    rule: LocalRule,
    clip: ClipNorm,
    noise_multiplier: NoiseMultiplier,
    noise: NoisePlace,
    mode: Mode,
    server: Server,
) -> Method:
    return Method(
        name=name,
        local=rule,
        transform=transforms.clip_l2(clip),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
        claims=claim(mode),
    )
