"""Fed-SMP: one sparse mask for all clients of a round, so that k of d numbers are sent and noised.

Hu, Gong & Guo, "Federated learning with sparsified model perturbation: improving accuracy under client-level
differential privacy", IEEE TMC 2023.

rand_k draws the mask before anybody looks at data, and scales what is kept by d/k before the clip. top_k takes the
coordinates that change most in training on PUBLIC data. Neither mask depends on a client, so noise on the k numbers
suffices.
"""

from __future__ import annotations

from typing import Literal

from cloister import local, mechanisms, servers, transforms
from cloister.errors import CloisterError
from cloister.joints import Method, ServerOptimiser, Setting
from cloister.methods.cards import NOISY_SUM, ONLY_THE_CLAIM, Mode, card, claim


@card("Hu, Gong & Guo, IEEE TMC 2023", NOISY_SUM, published=ONLY_THE_CLAIM)
def fed_smp_rand_k(
    clip: float,
    keep: float = 0.4,
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
    """Random masks, one a round. Guarantee: that of DP-FedAvg."""
    return Method(
        name="fed_smp_rand_k",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay),
        transform=transforms.chain(transforms.random_mask(keep), transforms.clip_l2(clip)),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
        claims=claim(mode),
    )


@card("Hu, Gong & Guo, IEEE TMC 2023", NOISY_SUM, published=ONLY_THE_CLAIM)
def fed_smp_top_k(
    clip: float,
    keep: float = 0.4,
    public_lr: float = 0.1,
    public_steps: int = 3,
    public_batch: int = 64,
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
    """Masks from public data, one a round. Guarantee: that of DP-FedAvg. Refused without public data."""
    mask = transforms.public_mask(keep, public_lr, public_steps, public_batch)
    return Method(
        name="fed_smp_top_k",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay),
        transform=transforms.chain(mask, transforms.clip_l2(clip)),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
        fit=_with_public_data,
        claims=claim(mode),
        notes=("the public data: they are protected by nothing, and count as public",),
    )


def _with_public_data(method: Method, setting: Setting) -> Method:
    if setting.public is None:
        raise CloisterError(
            "Expected public data for the mask of fed_smp_top_k, found none: a mask from private updates would have to "
            "be paid for, so set some aside (public = 1000), or use dp_fedsam_top_k with variant A, whose noise covers "
            "all coordinates."
        )
    return method
