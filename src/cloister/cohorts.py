"""Cohorts: who takes part in a round, and what that is worth.

Guarantee: `event` describes the draw that `sample` makes. The draw is secret and uses protective randomness.
The denominator is a constant of the run, never the cohort's actual size, which depends on who is there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cloister.errors import expect_count, expect_probability
from cloister.joints import Cohort
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.streams import Streams


def poisson(rate: float) -> Cohort:
    """Each client joins independently with probability `rate`. Neighbours: add or remove one client."""
    expect_probability("rate", rate, "the probability with which a client joins a round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        return torch.nonzero(streams.protective_uniform(population, "cohort", round) < rate).flatten()

    return Cohort(
        name="poisson",
        settings={"rate": rate},
        sample=sample,
        expected=lambda population: rate * population,
        event=lambda noise, _: PoissonGaussian(noise, rate),
        executed=f"each client joins a round independently with probability {rate:g}",
    )


def fixed(size: int) -> Cohort:
    """Exactly `size` clients, all subsets equally likely. Neighbours: replace one client by another."""
    expect_count("size", size, "the number of clients in every round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        order = torch.argsort(streams.protective_uniform(population, "cohort", round), stable=True)
        return order[:size].sort().values

    return Cohort(
        name="fixed",
        settings={"size": size},
        sample=sample,
        expected=lambda population: float(size),
        event=lambda noise, population: FixedSizeGaussian(noise, size, population),
        executed=f"exactly {size} clients join every round, drawn uniformly without replacement",
    )


def everyone() -> Cohort:
    """All clients, every round: no amplification by sampling. Neighbours: add or remove one client."""
    return Cohort(
        name="everyone",
        settings={},
        sample=lambda streams, round, population: torch.arange(population),
        expected=float,
        event=lambda noise, _: Gaussian(noise),
        executed="every client joins every round",
    )


CATALOGUE: dict[str, Callable[..., Cohort]] = {"poisson": poisson, "fixed": fixed, "everyone": everyone}
