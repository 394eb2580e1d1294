"""Which priced queries a run makes beside training, and how much of its budget each of them has.

A share s of the budget is meant in the sense of Gaussian differential privacy (Dong, Roth & Su 2022), where the squares
of the parameters of independent releases add up: one Gaussian release that spends the whole budget has the noise
multiplier z, one that has the share s of it has z / sqrt(s). What is left for training is found by composing all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cloister.client.centering import Centering
from cloister.client.population import Population
from cloister.client.standardization import Standardization
from cloister.core import Cohort, Method
from cloister.core.mechanism import as_drawn
from cloister.data.validation import split_validation
from cloister.errors import CloisterError, expect
from cloister.privacy.accountant import Releases
from cloister.privacy.calibration import calibrate
from cloister.privacy.description import QueryDescription
from cloister.privacy.events import Adjacency
from cloister.privacy.ledger import Charge
from cloister.privacy.pricing import adjacency_of
from cloister.privacy.unit import ProtectedUnit, sample_account
from cloister.round.charges import cohort_event
from cloister.round.queries import query_event
from cloister.runs.request import DTYPES, Options, Request, Target, usable_device
from cloister.runs.selection import Selection


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is asked so many times in a run, for a share of the budget."""

    name: str
    share: float
    times: int
    released: str
    """What becomes known, in words for the certificate."""


@dataclass(frozen=True)
class Queries:
    """The queries of a run, under the adjacency of its other releases."""

    planned: tuple[PlannedQuery, ...]
    unit: ProtectedUnit
    adjacency: Adjacency | None
    copies: int = 1

    def noise(self, query: PlannedQuery, target: float | None, delta: float | None, units: int) -> float:
        """The noise multiplier of one answer; 0 where nothing is protected."""
        if target is None or delta is None:
            return 0.0
        whole = _whole_budget(self.adjacency, target, delta, self.copies)
        return whole * math.sqrt(query.times / query.share)

    def beside(self, target: float | None, delta: float | None, units: int) -> Releases:
        """What all queries of a run cost one of so many units."""
        return tuple(
            (query_event(self.adjacency, self.noise(query, target, delta, units), units), query.times * self.copies)
            for query in self.planned
        )

    def noises(self, query: PlannedQuery, targets: Target, delta: float | None, sizes: list[int]) -> tuple[float, ...]:
        """The noise multipliers of one answer: one for all clients, or every client's."""
        if targets is None or (self.unit is ProtectedUnit.CLIENT and not isinstance(targets, Sequence)):
            return (self.noise(query, targets, delta, len(sizes)),)
        wanted = targets if isinstance(targets, Sequence) else [targets] * len(sizes)
        return tuple(self.noise(query, target, delta, n) for target, n in zip(wanted, sizes, strict=True))

    def charges(self, noises: tuple[float, ...], sizes: list[int]) -> dict[str, Charge]:
        """What one answer costs whom."""
        if self.unit is ProtectedUnit.CLIENT:
            return {self.unit: Charge(query_event(self.adjacency, noises[0], len(sizes)))}
        own = noises if len(noises) > 1 else noises * len(sizes)
        return {
            sample_account(client): Charge(query_event(self.adjacency, own[client], n), self.copies)
            for client, n in enumerate(sizes)
            if n
        }

    def describe(self, noises: Mapping[str, tuple[float, ...]]) -> tuple[QueryDescription, ...]:
        """The queries as plain values."""
        return tuple(
            QueryDescription(query.name, query.released, query.times, tuple(noises[query.name]))
            for query in self.planned
        )


@lru_cache(maxsize=256)
def _whole_budget(adjacency: Adjacency | None, epsilon: float, delta: float, copies: int) -> float:
    """The noise multiplier of one Gaussian release that spends the whole budget. (The number of units is no matter: all
    of them take part.)"""
    return calibrate(lambda z: query_event(adjacency, z, 1000), copies, epsilon, delta)


def plan_queries(request: Request) -> Queries:
    """The queries that a run asks for."""
    task = request.task
    return queries_of(
        request.method, request.cohort, request.options, request.rounds, task.clients, task.copies, request.epsilon
    )


def queries_of(
    method: Method, cohort: Cohort, options: Options, rounds: int, clients: int, copies: int, epsilon: Target
) -> Queries:
    """The queries that such a run asks for."""
    planned = []
    if options.standardize is not None:
        planned.append(PlannedQuery("statistics", options.standardize, 1, _STATISTICS))
    if options.center is not None:
        planned.append(PlannedQuery("mean", options.center, 1, _MEAN))
    if options.decorrelate is not None:
        planned.append(PlannedQuery("second moments", options.decorrelate, 1, _SECOND_MOMENTS))
    if method.first_query is not None:
        asked = method.first_query
        planned.append(PlannedQuery(asked.name, asked.share, 1, asked.released))
    if options.validation == "private":
        times = Selection.of(options, rounds).times(rounds)
        planned.append(PlannedQuery("validation", options.validation_share, times, _VALIDATION))
    shares = sum(query.share for query in planned)
    expect(shares < 1, "shares of the budget that leave something for training", f"{shares:g}", "ask for less")
    mechanism = method.mechanism
    noiseless = mechanism.place == "nowhere" or mechanism.noise_multiplier == 0
    if planned and not noiseless and epsilon is None:
        raise CloisterError(
            f"Expected an epsilon for a run that asks for {planned[0].name}, which has a share of it, found a "
            "noise_multiplier alone: give epsilon."
        )
    own = copies if method.unit is ProtectedUnit.SAMPLE else 1
    return Queries(tuple(planned), method.unit, _adjacency(method, cohort, clients) if planned else None, own)


_VALIDATION = "a noisy mean of how models do on held-out samples of the clients, now and then"
_MEAN = "a noisy mean of the inputs, each of length 1, before the first round"
_SECOND_MOMENTS = "a noisy matrix of second moments of the centered inputs, before the first round"
_STATISTICS = "a noisy mean and mean square of the inputs, before the first round"


def expect_gaussian(method: Method, queries: Queries) -> None:
    """Refuse queries beside a method, complete as it is run, whose guarantee they would not share."""
    if not queries.planned:
        return
    mechanism, names = method.mechanism, " and ".join(query.name for query in queries.planned)
    if mechanism.integer or mechanism.account is not as_drawn or method.local_only or method.claims is not None:
        raise CloisterError(
            f"Expected a method with Gaussian noise on real sums for {names}, found {method.name} with "
            f"{mechanism.name} noise{' as published' if method.claims else ''}: declare ranges in the schema instead, "
            "or choose dp_fedavg, or pfl with real noise (noise = gaussian)."
        )


def _adjacency(method: Method, cohort: Cohort, clients: int) -> Adjacency | None:
    """Which neighbors the prices of a method's rounds are about."""
    if method.unit is ProtectedUnit.SAMPLE:
        return adjacency_of(method.local.batching.event(1.0, 1))
    return adjacency_of(cohort_event(method, cohort, 1.0, clients))


def with_validation(request: Request) -> tuple[Request, Population | None]:
    """The request without the samples that clients hold out, where they do, and these."""
    options = request.options
    if options.validation != "private":
        return request, None
    task, held_out = split_validation(request.task, options.validation_fraction, options.seed)
    remedy = "raise validation_fraction, or validate on public samples"
    expect(len(held_out.labels) > 0, "samples to hold out for private validation", "none", remedy)
    return replace(request, task=task), held_out


def standardized(request: Request) -> tuple[Request, Standardization | Centering | None]:
    """The request with inputs that queries are to standardize or to center, if that is asked for."""
    options, task = request.options, request.task
    if options.standardize is None and options.center is None:
        return request, None
    device, dtype = usable_device(options.device), DTYPES[options.dtype]
    some = task.population.to(device, dtype).inputs[:1]
    learned: Standardization | Centering
    if options.center is None:
        learned = Standardization.begin(task.preprocessing, some, dtype, options.standardize_bound)
    else:
        decorrelates = options.decorrelate is not None
        learned = Centering.begin(task.preprocessing, some, dtype, options.center_rank, decorrelates)
    return replace(request, task=replace(task, preprocessing=learned.preprocessing)), learned


def described(queries: Queries, request: Request) -> tuple[QueryDescription, ...]:
    """The queries of a run as plain values, with their noise."""
    sizes = request.task.population.counts.tolist()
    return queries.describe(
        {query.name: queries.noises(query, request.epsilon, request.delta, sizes) for query in queries.planned}
    )
