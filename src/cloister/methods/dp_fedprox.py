"""FedProx with client-level privacy: clients are held near the round's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar & Smith, "Federated optimization in heterogeneous networks", MLSys 2020; the
clip and the noise are DP-FedAvg's.
"""

from __future__ import annotations

from typing import Literal

from cloister import gradients, local, mechanisms, servers, transforms
from cloister.joints import Method, ServerOptimiser
from cloister.methods.cards import NOISY_SUM, card


@card("Li et al., MLSys 2020", NOISY_SUM)
def dp_fedprox(
    clip: float,
    proximal: float = 0.1,
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    noise_multiplier: float | None = None,
    noise: Literal["central", "distributed"] = "central",
    server: ServerOptimiser | None = None,
) -> Method:
    """DP-FedAvg whose local loss grows with the distance from the round's model. Guarantee: that of DP-FedAvg."""
    return Method(
        name="dp_fedprox",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay, gradients.proximal(proximal)),
        transform=transforms.clip_l2(clip),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
    )
