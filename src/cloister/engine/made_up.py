"""Clients of the right shape that nobody is: for trying engines, and for compiling before a run."""

from __future__ import annotations

import torch

from cloister.client.population import Population
from cloister.round import Federation
from cloister.round.bind import over_made_up_clients


def made_up_clients(fed: Federation, clients: int) -> Federation:
    """The same federation over a few clients of typical sizes, the smallest and the largest among them, whose samples
    are all zero."""
    real = fed.population
    last = max(clients - 1, 1)
    places = torch.tensor([real.clients - 1 - (real.clients - 1) * place // last for place in range(clients)])
    typical = real.counts.sort().values[places].to(real.sizes.device)
    samples = max(int(typical.sum()), 1)
    population = Population(
        real.inputs.new_zeros((samples, *real.inputs.shape[1:])),
        real.labels.new_zeros((samples, *real.labels.shape[1:])),
        typical.cumsum(0) - typical,
        typical,
    )
    return over_made_up_clients(fed, population, fed.denominator)
