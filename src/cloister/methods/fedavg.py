"""FedAvg: no privacy. The yardstick that the private methods are measured against.

McMahan, Moore, Ramage, Hampson & Aguera y Arcas, "Communication-efficient learning of deep networks from
decentralized data", AISTATS 2017. With client_weights = "size" the mean of a round is the paper's,

    w <- w + sum of n_i u_i / sum of n_i        over the clients i that took part, with n_i samples each;

by default clients weigh the same, as with most private methods, and the sum is divided by the cohort's expected size.
"""

from __future__ import annotations

from cloister import client, mechanisms, transforms
from cloister.client import LocalSGD
from cloister.core import Method
from cloister.core.arguments import flat_arguments
from cloister.methods.arguments import Server
from cloister.methods.registry import register
from cloister.methods.weighting import ClientWeights, PublicWeights
from cloister.server import optimizers


@register("McMahan et al., AISTATS 2017", "nothing", "everybody", unit="nobody")
@flat_arguments
def fedavg(
    *,
    training: LocalSGD,
    server: Server = None,
    client_weights: ClientWeights = "equal",
) -> Method:
    """Clients train locally; the server averages what they send, equally or by their numbers of samples."""
    weighting = PublicWeights(client_weights)  # what protects nobody may use any number
    return Method(
        name="fedavg",
        local=client.sgd(training=training),
        transform=weighting.after(transforms.identity()),
        mechanism=mechanisms.none(),
        server=server or optimizers.sgd(),
    )
