"""Cohorts: who takes part in a round, and what that is worth.

Guarantee: `event` describes the draw that `sample` makes. The draw is secret and uses protective randomness.
The denominator is a constant of the run, never the cohort's actual size, which depends on who is there.
A draw costs what the cohort is large, however many clients are registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from cloister.core import Cohort
from cloister.errors import expect, expect_count, expect_probability
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.random.samplers import bernoulli_indices, subset
from cloister.random.streams import Streams

CohortSize = Annotated[int, "number of clients in every round"]


def poisson(sampling_rate: Annotated[float, "probability with which a client joins a round"]) -> Cohort:
    """Each client joins independently with probability `sampling_rate`. Neighbors: add or remove one client."""
    expect_probability("sampling_rate", sampling_rate, "the probability with which a client joins a round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        return bernoulli_indices(
            sampling_rate, population, lambda count, n: streams.protective_uniform(count, "cohort", round, n)
        )

    return Cohort(
        name="poisson",
        settings={"sampling_rate": sampling_rate},
        sample=sample,
        expected=lambda population: sampling_rate * population,
        event=lambda noise, _: PoissonGaussian(noise, sampling_rate),
        executed=f"each client joins a round independently with probability {sampling_rate:g}",
        participations=_likely_participations(lambda population: sampling_rate),
    )


def fixed_size(clients_per_round: CohortSize) -> Cohort:
    """Exactly `clients_per_round` clients, all subsets equally likely. Neighbors: replace one client by another."""
    expect_count("clients_per_round", clients_per_round, "the number of clients in every round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        expect(
            clients_per_round <= population,
            f"a cohort of at most {population} clients",
            clients_per_round,
            "ask for fewer",
        )

        def integers(count: int, number: int) -> Tensor:
            return streams.protective_integers(count, population, "cohort", round, number)

        return subset(clients_per_round, population, integers)

    return Cohort(
        name="fixed_size",
        settings={"clients_per_round": clients_per_round},
        sample=sample,
        expected=lambda population: float(clients_per_round),
        event=lambda noise, population: FixedSizeGaussian(noise, clients_per_round, population),
        executed=f"exactly {clients_per_round} clients join every round, drawn uniformly without replacement",
        participations=_likely_participations(lambda population: clients_per_round / population),
    )


def full() -> Cohort:
    """All clients, every round: no amplification by sampling. Neighbors: add or remove one client."""
    return Cohort(
        name="full",
        settings={},
        sample=lambda streams, round, population: torch.arange(population),
        expected=float,
        event=lambda noise, _: Gaussian(noise),
        executed="every client joins every round",
    )


def cyclic(clients_per_round: CohortSize) -> Cohort:
    """Clients take turns, `clients_per_round` at a time, over and over. Neighbors: add or remove one client.

    Nothing is secret and nothing is sampled: a client takes part in one round of every cycle, so one Gaussian release
    pays for a whole cycle. The price needs no assumption on how devices come and go, only that none comes out of turn.
    """
    expect_count("clients_per_round", clients_per_round, "the number of clients in every round")

    def cycle(population: int) -> int:
        return -(-population // clients_per_round)

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        first = (round - 1) % cycle(population) * clients_per_round
        return torch.arange(first, min(first + clients_per_round, population))

    return Cohort(
        name="cyclic",
        settings={"clients_per_round": clients_per_round},
        sample=sample,
        expected=lambda population: float(clients_per_round),
        event=lambda noise, _: Gaussian(noise),
        executed=f"clients take turns, {clients_per_round} in every round, in an order that is public",
        min_separation=cycle,
        participations=lambda rounds, population: -(-rounds // cycle(population)),
    )


def _likely_participations(sampling_rate: Callable[[int], float]) -> Callable[[int, int], int]:
    """How often a client joins at most, but for a chance of 1 in 20 that one of them comes more often."""

    def participations(rounds: int, population: int) -> int:
        from scipy.stats import binom

        likely = int(binom.isf(0.05 / population, rounds, min(sampling_rate(population), 1.0)))
        return min(rounds, max(likely, 1))

    return participations


CATALOGUE: dict[str, Callable[..., Cohort]] = {
    "poisson": poisson,
    "fixed_size": fixed_size,
    "full": full,
    "cyclic": cyclic,
}
