"""Fed-SMP: one sparse mask for all clients of a round, so that k of d numbers are sent and noised.

Hu, Gong & Guo, "Federated learning with sparsified model perturbation: improving accuracy under client-level
differential privacy", IEEE TMC 2023.

    rand_k  total = sum_i clip((d/k) (mask * u_i), S) + N(0, z^2 S^2 I_k)       top_k  the same without d/k

rand_k draws the mask before anybody looks at data, and scales what is kept by d/k before the clip. top_k takes the
coordinates that change most in training on PUBLIC data. Neither mask depends on a client, so noise on the k numbers
suffices.
"""

from __future__ import annotations

from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import BindContext, Method
from cloister.core.arguments import flat_arguments
from cloister.errors import CloisterError
from cloister.methods.arguments import ClipNorm, Keep, NoiseMultiplier, NoisePlace, Scope, Server
from cloister.methods.published import ONLY_THE_CLAIM, Mode, claim
from cloister.methods.registry import NOISY_SUM, register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers


@register("Hu, Gong & Guo, IEEE TMC 2023", NOISY_SUM, published=ONLY_THE_CLAIM)
@flat_arguments
def fed_smp_rand_k(
    clip_norm: ClipNorm,
    keep_fraction: Keep = 0.4,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """Random masks, one a round. Guarantee: that of DP-FedAvg."""
    return Method(
        name="fed_smp_rand_k",
        local=client.sgd(training=training),
        transform=weighting.after(
            transforms.chain(transforms.random_mask(keep_fraction), transforms.clip_l2(clip_norm))
        ),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        claims=claim(mode),
        notes=weighting.notes,
    )


@register("Hu, Gong & Guo, IEEE TMC 2023", NOISY_SUM, published=ONLY_THE_CLAIM)
@flat_arguments
def fed_smp_top_k(
    clip_norm: ClipNorm,
    keep_fraction: Keep = 0.4,
    public_lr: Annotated[float, "the server's learning rate on public data"] = 0.1,
    public_steps: Annotated[int, "the server's steps on public data"] = 3,
    public_batch_size: Annotated[int, "public samples in a mini-batch"] = 64,
    scope: Scope = "model",
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    mode: Mode = "sound",
    server: Server = None,
) -> Method:
    """Masks from public data, one a round. Guarantee: that of DP-FedAvg. Refused without public data."""
    mask = transforms.public_mask(keep_fraction, public_lr, public_steps, public_batch_size, scope)
    return Method(
        name="fed_smp_top_k",
        local=client.sgd(training=training),
        transform=weighting.after(transforms.chain(mask, transforms.clip_l2(clip_norm))),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        bind=_with_public_data,
        claims=claim(mode),
        notes=("the public data: they are protected by nothing, and count as public", *weighting.notes),
    )


def _with_public_data(method: Method, context: BindContext) -> Method:
    if context.public_samples is None:
        raise CloisterError(
            "Expected public data for the mask of fed_smp_top_k, found none: a mask from private updates would have "
            "to be paid for, so set some aside (public_samples = 1000), or use dp_fedsam_top_k with variant A, whose "
            "noise covers all coordinates."
        )
    return method
