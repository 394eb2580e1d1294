"""Cohorts: who takes part in a round, and what that is worth.

Guarantee: `event` describes the draw that `sample` makes. The draw is secret and uses protective randomness.
The denominator is a constant of the run, never the cohort's actual size, which depends on who is there.
A draw costs what the cohort is large, however many clients are registered.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cloister.errors import expect, expect_count, expect_probability
from cloister.joints import Cohort
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.streams import Streams


def poisson(rate: float) -> Cohort:
    """Each client joins independently with probability `rate`. Neighbours: add or remove one client.

    Instead of a coin for every client, the gaps between those who join are drawn. Of independent coins, the number
    of tails before the next head is at least g with probability (1 - rate)^g, whatever came before; and so is
    floor(ln U / ln(1 - rate)) for a uniform U in (0, 1], because it is at least g just when U <= (1 - rate)^g. Hence
    the law is that of the coins. In floating point U is a multiple of 2^-53, and that, with the rounding of the
    logarithms, moves each of these probabilities by about 2^-53, as it would that of a coin.
    """
    expect_probability("rate", rate, "the probability with which a client joins a round")

    def sample(streams: Streams, round: int, population: int) -> Tensor:
        return torch.arange(population) if rate == 1 else _coins(rate, streams, round, population)

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
        expect(size <= population, f"a cohort of at most {population} clients", size, "ask for fewer")
        if 2 * size <= population:
            return torch.from_numpy(_subset(size, streams, round, population))
        stays = torch.ones(population, dtype=torch.bool)
        stays[torch.from_numpy(_subset(population - size, streams, round, population))] = False
        return stays.nonzero().flatten()

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


def cyclic(size: int) -> Cohort:
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
        separation=cycle,
    )


def _coins(rate: float, streams: Streams, round: int, population: int) -> Tensor:
    """Everyone whose coin of probability `rate` < 1 shows heads, by the gaps between them."""
    expected = rate * population
    batch = int(expected + 4 * math.sqrt(expected)) + 8  # seldom too few
    members: list[Tensor] = []
    last, draws = -1.0, 0
    while last < population:
        uniform = 1 - streams.protective_uniform(batch, "cohort", round, draws).numpy()
        with np.errstate(over="ignore"):  # a gap too large for a number is infinite: nobody else joins
            gaps = np.floor(np.log(uniform) / math.log1p(-rate))
        places = last + np.cumsum(gaps + 1)  # whole numbers, exact up to 2^53 and so up to the last client
        members.append(torch.from_numpy(places[places < population].astype(np.int64)))
        last, draws = float(places[-1]), draws + 1
    return torch.cat(members)


def _subset(size: int, streams: Streams, round: int, population: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first `size` different ones of a sequence of uniform draws, which treats all clients alike; sorted."""
    drawn = members = np.empty(0, dtype=np.int64)
    draws = 0
    while len(members) < size:
        more = streams.protective_integers(size, population, "cohort", round, draws).numpy()
        drawn, draws = np.concatenate([drawn, more]), draws + 1
        values, first_seen = np.unique(drawn, return_index=True)
        members = values[np.argsort(first_seen)[:size]]
    return np.sort(members)


CATALOGUE: dict[str, Callable[..., Cohort]] = {
    "poisson": poisson,
    "fixed": fixed,
    "everyone": everyone,
    "cyclic": cyclic,
}
