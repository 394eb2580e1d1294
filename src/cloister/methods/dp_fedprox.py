"""FedProx with client-level privacy: clients are held near the round's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, "Federated optimization in heterogeneous networks", MLSys 2020; the
clip and the noise are DP-FedAvg's.
"""

from __future__ import annotations

from typing import Annotated

from cloister import gradients, local, mechanisms, servers, transforms
from cloister.joints import Method
from cloister.joints.arguments import flat_arguments
from cloister.local import LocalSGD
from cloister.methods.arguments import ClipNorm, NoiseMultiplier, NoisePlace, Server
from cloister.methods.registry import NOISY_SUM, register


@register("Li et al., MLSys 2020", NOISY_SUM)
@flat_arguments
def dp_fedprox(
    clip: ClipNorm,
    proximal: Annotated[float, "strength with which clients are held near the round's model"] = 0.1,
    *,
    training: LocalSGD,
    noise_multiplier: NoiseMultiplier = None,
    noise: NoisePlace = "central",
    server: Server = None,
) -> Method:
    """DP-FedAvg whose local loss grows with the distance from the round's model. Guarantee: that of DP-FedAvg."""
    return Method(
        name="dp_fedprox",
        local=local.sgd(training=training, gradient=gradients.proximal(proximal)),
        transform=transforms.clip_l2(clip),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
    )
