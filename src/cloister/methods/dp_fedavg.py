"""DP-FedAvg: FedAvg with client-level privacy.

McMahan, Ramage, Talwar & Zhang, "Learning differentially private recurrent language models", ICLR 2018.

    u_i = local training;  total = sum_i u_i min(1, S/||u_i||) + N(0, z^2 S^2 I);  w <- w + total / (q N)
"""

from __future__ import annotations

from typing import Literal

from cloister import local, mechanisms, servers
from cloister.joints import Method, ServerOptimiser
from cloister.methods.cards import EACH_TENSOR, NOISY_SUM, Mode, card, claim, clipping


@card("McMahan et al., ICLR 2018", NOISY_SUM, published=EACH_TENSOR)
def dp_fedavg(
    clip: float,
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
    """FedAvg whose updates are clipped as a whole and whose sum is released with Gaussian noise.

    Guarantee: the noisy sum of every round is differentially private for a client and all its data, at the
    epsilon that the run's certificate states. `noise_multiplier` left out means: calibrate it to the target.
    """
    return Method(
        name="dp_fedavg",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay),
        transform=clipping(clip, mode),
        mechanism=mechanisms.gaussian(noise_multiplier, noise),
        server=server or servers.sgd(),
        claims=claim(mode),
    )
