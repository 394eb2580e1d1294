"""FedAvg: no privacy. The yardstick that the private methods are measured against.

McMahan, Moore, Ramage, Hampson & Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017. Here with equal weights, as every private method needs them.
"""

from __future__ import annotations

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.methods.arguments import Server
from cloister.methods.registry import register
from cloister.server import optimizers


@register("McMahan et al., AISTATS 2017", "nothing", "everybody", unit="nobody")
@flat_arguments
def fedavg(
    *,
    training: LocalSGD,
    server: Server = None,
) -> Method:
    """Clients train locally; the server averages what they send."""
    return Method(
        name="fedavg",
        local=client.sgd(training=training),
        transform=transforms.identity(),
        mechanism=mechanisms.none(),
        server=server or optimizers.sgd(),
    )
