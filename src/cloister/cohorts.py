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

from cloister.errors import expect, expect_count, expect_probability
from cloister.joints import Cohort
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.sampling import heads, subset
from cloister.streams import Streams

CohortSize = Annotated[int, "number of clients in every round"]


def poisson(rate: Annotated[float, "probability with which a client joins a round"]) -> Cohort:
    """Each client joins independently with probability `rate`. Neighbours: add or remove one client."""
    expect_probability("rate", rate, "the probability with which a client joins a round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        return heads(rate, population, lambda count, n: streams.protective_uniform(count, "cohort", round, n))

    return Cohort(
        name="poisson",
        settings={"rate": rate},
        sample=sample,
        expected=lambda population: rate * population,
        event=lambda noise, _: PoissonGaussian(noise, rate),
        executed=f"each client joins a round independently with probability {rate:g}",
        participations=_likely_participations(lambda population: rate),
    )


def fixed(size: CohortSize) -> Cohort:
    """Exactly `size` clients, all subsets equally likely. Neighbours: replace one client by another."""
    expect_count("size", size, "the number of clients in every round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        expect(size <= population, f"a cohort of at most {population} clients", size, "ask for fewer")

        def integers(count: int, number: int) -> Tensor:
            return streams.protective_integers(count, population, "cohort", round, number)

        return subset(size, population, integers)

    return Cohort(
        name="fixed",
        settings={"size": size},
        sample=sample,
        expected=lambda population: float(size),
        event=lambda noise, population: FixedSizeGaussian(noise, size, population),
        executed=f"exactly {size} clients join every round, drawn uniformly without replacement",
        participations=_likely_participations(lambda population: size / population),
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


def cyclic(size: CohortSize) -> Cohort:
    """The first `size` clients, then the next, and so on, over and over. Neighbours: add or remove one client.

    Nothing is secret and nothing is sampled: a client takes part in one round of every cycle, so one Gaussian release
    pays for a whole cycle. The price needs no assumption on how devices come and go, only that none comes out of turn.
    """
    expect_count("size", size, "the number of clients in every round")

    def cycle(population: int) -> int:
        return -(-population // size)

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        first = (round - 1) % cycle(population) * size
        return torch.arange(first, min(first + size, population))

    return Cohort(
        name="cyclic",
        settings={"size": size},
        sample=sample,
        expected=lambda population: float(size),
        event=lambda noise, _: Gaussian(noise),
        executed=f"clients take turns, {size} in every round, in an order that is public",
        min_separation=cycle,
        participations=lambda rounds, population: -(-rounds // cycle(population)),
    )


def _likely_participations(rate: Callable[[int], float]) -> Callable[[int, int], int]:
    """How often a client joins at most, but for a chance of 1 in 20 that one of them comes more often."""

    def participations(rounds: int, population: int) -> int:
        from scipy.stats import binom

        likely = int(binom.isf(0.05 / population, rounds, min(rate(population), 1.0)))
        return min(rounds, max(likely, 1))

    return participations


CATALOGUE: dict[str, Callable[..., Cohort]] = {
    "poisson": poisson,
    "fixed": fixed,
    "everyone": everyone,
    "cyclic": cyclic,
}
