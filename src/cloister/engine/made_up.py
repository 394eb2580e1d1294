"""Clients of the right shape that nobody is: for trying engines, and for compiling before a run."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from cloister.client.population import Population
from cloister.core.local_rule import Batching
from cloister.round import Federation
from cloister.round.bind import over_made_up_clients


def made_up_clients(fed: Federation, clients: int) -> Federation:
    """The same federation over a few clients of typical sizes, the smallest and the largest among them, whose samples
    are all zero."""
    real = fed.population
    last = max(clients - 1, 1)
    places = torch.tensor([real.clients - 1 - (real.clients - 1) * place // last for place in range(clients)])
    return _of_sizes(fed, real.counts.sort().values[places].to(real.sizes.device), fed.denominator)


def with_fewer_steps(made: Federation, most: int) -> tuple[Federation, float]:
    """Made-up clients who take at most about `most` steps in each phase of a round, and how many times as many they
    took before: an epoch in place of twenty, then fewer batches of it."""
    sizes = made.population.counts
    before = _steps(made, sizes)
    phases, share = [], 1.0
    for phase in made.method.local.phases:
        fewer, part = _fewer(phase.batching, int(sizes.max()), most)
        phases.append(replace(phase, batching=fewer))
        share = min(share, part)
    local = replace(made.method.local, phases=tuple(phases))
    short = replace(made, method=replace(made.method, local=local))
    fewer_samples = (sizes * share).ceil().to(sizes.dtype)
    return _of_sizes(short, fewer_samples, made.denominator), before / max(_steps(short, fewer_samples), 1)


def _fewer(batching: Batching, samples: int, most: int) -> tuple[Batching, float]:
    """Of a client with so many samples; and which part of its samples it then has."""
    if batching.local_epochs is None:
        steps = (batching.local_steps or 0) * (batching.by_round or (1,))[0]
        return replace(batching, local_steps=min(steps, most), by_round=()), 1.0
    epochs = batching.local_epochs * (batching.by_round or (1,))[0]
    a_pass = max(math.ceil(samples / batching.batch_size), 1)
    fewer = replace(batching, local_epochs=max(min(epochs, most // a_pass), min(epochs, 1)), by_round=())
    cut = a_pass > most and batching.sample_rate is None  # whose batches would be smaller, too
    return fewer, most * batching.batch_size / samples if cut else 1.0


def _steps(fed: Federation, sizes: Tensor) -> int:
    phases = fed.method.local.phases
    return sum(phase.batching.steps_for(size, 1) for phase in phases for size in sizes.tolist())


def _of_sizes(fed: Federation, sizes: Tensor, denominator: float) -> Federation:
    """The same federation over clients of these sizes."""
    real, samples = fed.population, max(int(sizes.sum()), 1)
    population = Population(
        real.inputs.new_zeros((samples, *real.inputs.shape[1:])),
        real.labels.new_zeros((samples, *real.labels.shape[1:])),
        sizes.cumsum(0) - sizes,
        sizes,
    )
    return over_made_up_clients(fed, population, denominator)
