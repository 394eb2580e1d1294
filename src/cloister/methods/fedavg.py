"""FedAvg: no privacy. The yardstick that the private methods are measured against.

McMahan, Moore, Ramage, Hampson & Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017. Here with equal weights, as every private method needs them.
"""

from __future__ import annotations

from cloister import local, mechanisms, servers, transforms
from cloister.joints import Method
from cloister.joints.arguments import flat_arguments
from cloister.local import LocalSGD
from cloister.methods.arguments import Server
from cloister.methods.registry import register


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
        local=local.sgd(training=training),
        transform=transforms.identity(),
        mechanism=mechanisms.none(),
        server=server or servers.sgd(),
    )
