"""BLUR and LUS: local training that loses less to clipping and noise.

Cheng, Wang, Zhang & Chen, "Differentially private federated learning with local regularization and sparsification",
CVPR 2022.

BLUR pulls a client back once it is further than the clipping radius S from where it started; LUS keeps, in every
layer, the coordinates whose removal would change the client's loss most, |gradient * update|. Both happen on the
client before the clip, and so cost no privacy. The mask is private: noise stays on all coordinates.

The paper averages over the cohort's actual size; here, as everywhere, the denominator is the expected size.
"""

from __future__ import annotations

from typing import Literal

from cloister import gradients, local, mechanisms, servers, transforms
from cloister.errors import expect_share
from cloister.joints import LocalRule, Method, ServerOptimiser
from cloister.methods.cards import NOISY_SUM, ONLY_THE_CLAIM, Mode, card, claim
from cloister.sparsity import Ties


@card("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
def blur(
    clip: float,
    blur: float = 0.4,
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    noise_multiplier: float | None = None,
    noise: Literal["central", "distributed"] = "central",
    mode: Mode = "honest",
    server: ServerOptimiser | None = None,
) -> Method:
    """DP-FedAvg with Bounded Local Update Regularization of strength `blur`. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay, gradients.blur(blur, clip))
    return _private("blur", rule, clip, noise_multiplier, noise, mode, server)


@card("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
def lus(
    clip: float,
    sparsity: float = 0.7,
    importance: local.Importance = "all",
    ties: Ties = "keep",
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    noise_multiplier: float | None = None,
    noise: Literal["central", "distributed"] = "central",
    mode: Mode = "honest",
    server: ServerOptimiser | None = None,
) -> Method:
    """DP-FedAvg with Local Update Sparsification: `sparsity` of every layer goes. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay)
    rule = _sparse(rule, sparsity, importance, ties)
    return _private("lus", rule, clip, noise_multiplier, noise, mode, server)


@card("Cheng et al., CVPR 2022", NOISY_SUM, published=ONLY_THE_CLAIM)
def blur_lus(
    clip: float,
    blur: float = 0.4,
    sparsity: float = 0.7,
    importance: local.Importance = "all",
    ties: Ties = "keep",
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    noise_multiplier: float | None = None,
    noise: Literal["central", "distributed"] = "central",
    mode: Mode = "honest",
    server: ServerOptimiser | None = None,
) -> Method:
    """Both together, the paper's method. Guarantee: that of DP-FedAvg."""
    rule = local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay, gradients.blur(blur, clip))
    rule = _sparse(rule, sparsity, importance, ties)
    return _private("blur_lus", rule, clip, noise_multiplier, noise, mode, server)


def _sparse(rule: LocalRule, sparsity: float, importance: local.Importance, ties: Ties) -> LocalRule:
    expect_share("sparsity", sparsity, "0.7 is the paper's, and something must be kept", zero=True)
    return local.keep_important(rule, 1 - sparsity, importance, ties)


def _private(
    name: str,
    rule: LocalRule,
    clip: float,
    noise_multiplier: float | None,
    noise: Literal["central", "distributed"],
    mode: Mode,
    server: ServerOptimiser | None,
) -> Method:
    return Method(
        name=name,
        local=rule,
        transform=transforms.clip_l2(clip),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
        claims=claim(mode),
    )
