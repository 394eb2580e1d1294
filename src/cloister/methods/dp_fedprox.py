"""FedProx with client-level privacy: clients are held near the round's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, "Federated optimization in heterogeneous networks", MLSys 2020; the
clip and the noise are DP-FedAvg's.

    local step: g = gradient of f_i(w) + mu (w - w0), with w0 the round's model and mu = proximal
"""

from __future__ import annotations

from typing import Annotated

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD, gradients
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, NoisePlace, Server
from cloister.methods.registry import NOISY_SUM, register
from cloister.methods.weighting import CappedWeights
from cloister.server import optimizers


@register("Li et al., MLSys 2020", NOISY_SUM)
@flat_arguments
def dp_fedprox(
    clip_norm: ClipNorm,
    proximal: Annotated[float, "strength with which clients are held near the round's model"] = 0.1,
    *,
    training: LocalSGD,
    weighting: CappedWeights,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    server: Server = None,
) -> Method:
    """DP-FedAvg whose local loss grows with the distance from the round's model. Guarantee: that of DP-FedAvg."""
    return Method(
        name="dp_fedprox",
        local=client.sgd(training=training, gradient=gradients.proximal(proximal)),
        transform=weighting.after(transforms.clip_l2(clip_norm)),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or optimizers.sgd(),
        notes=weighting.notes,
    )
