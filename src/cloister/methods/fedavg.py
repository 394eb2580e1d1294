"""FedAvg: no privacy. The yardstick that the private methods are measured against.

McMahan, Moore, Ramage, Hampson & Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017. Here with equal weights, as every private method needs them.
"""

from __future__ import annotations

from cloister import local, mechanisms, servers, transforms
from cloister.joints import Method, ServerOptimiser
from cloister.methods.cards import card


@card("McMahan et al., AISTATS 2017", "nothing", "everybody", unit="nobody")
def fedavg(
    lr: float = 0.1,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    server: ServerOptimiser | None = None,
) -> Method:
    """Clients train locally; the server averages what they send."""
    return Method(
        name="fedavg",
        local=local.sgd(lr, batch, steps, epochs, momentum, weight_decay, lr_decay),
        transform=transforms.identity(),
        mechanism=mechanisms.none(),
        server=server or servers.sgd(),
    )
