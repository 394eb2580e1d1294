"""From terms to a federation, on either side: the same method, model and prices, with the rows of one node or of none.

A server and its nodes call the same function, so that neither has to believe the other's numbers. What a node computes
with (noise, prices, shapes, who is counted on) follows from the terms and from its own rows alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor

from cloister.client.centering import Centering
from cloister.client.gradient_median import public_median
from cloister.client.population import Population
from cloister.client.standardization import Standardization
from cloister.core import Method, Samples
from cloister.data.task import Task
from cloister.data.validation import left_by_validation, split_validation
from cloister.deploy.halves.deployable import expect_calibrated, expect_deployable
from cloister.deploy.halves.shares import counted_on
from cloister.deploy.terms.terms import Terms
from cloister.errors import CloisterError, expect
from cloister.models import logistic
from cloister.privacy.budgets import Budget
from cloister.privacy.unit import ProtectedUnit
from cloister.random.streams import Streams
from cloister.round.bind import Federation, bind
from cloister.runs.metric_catalogue import watched
from cloister.runs.model_source import ModelSource
from cloister.runs.noise import Noise, expect_small_delta, with_noise
from cloister.runs.placement import Placed, place
from cloister.runs.prepare import norms_on_noise
from cloister.runs.queries import Queries, expect_gaussian, plan_queries, standardized
from cloister.runs.request import Request
from cloister.runs.selection import Selection
from cloister.runs.terms import Terms as PriceTerms


@dataclass(frozen=True)
class Prepared:
    """A federation as one of its parties sees it."""

    terms: Terms
    request: Request
    placed: Placed
    fed: Federation
    price: PriceTerms
    noise: Noise
    queries: Queries
    selection: Selection
    standardization: Standardization | Centering | None
    held_out: Population | None
    public_streams: Streams
    """What everybody can draw, and nobody is protected by: signs and masks."""

    @property
    def budgets(self) -> dict[str, Budget]:
        """What the terms let accounts spend, by account."""
        return self.noise.budgets


def prepare(
    terms: Terms,
    client: int | None = None,
    rows: Samples | None = None,
    public: Samples | None = None,
) -> Prepared:
    """The server's view, or with `rows` that of one client. Refused where the terms cannot be kept."""
    request = request_of(terms, public)
    request, standardization = standardized(request)
    placed = place(request)
    queries = plan_queries(request)
    expect_calibrated(terms, request.method, bool(queries.planned))
    population, held_out = _people(request, placed, client, rows)
    sizes = _sizes(terms, request.method, population, client)
    price = PriceTerms(
        request.cohort,
        request.rounds,
        placed.objective.layout,
        sizes,
        1,
        placed.public_samples,
        cache(partial(norms_on_noise, placed.objective, placed.w, placed.population, request.task.loss)),
        None if placed.public_samples is None else cache(partial(_public_median, placed)),
        queries,
    )
    noise = _noise(terms, request, price, client)
    fed = bind(
        price.complete(noise.method),
        request.cohort,
        placed.objective,
        population,
        _streams(terms, client),
        placed.w,
        "exact",
        placed.public_samples,
        noise.multipliers,
    )
    expect_gaussian(fed.method, queries)
    if not request.options.allow_large_delta and (client is not None or fed.unit is ProtectedUnit.CLIENT):
        expect_small_delta(request.delta, noise, [1] * terms.clients if fed.unit is ProtectedUnit.CLIENT else sizes)
    expect_deployable(terms, fed.method, fed.cohort)
    monitor = watched(request.task, None, None).monitor
    selection = Selection.of(request.options, request.rounds, monitor)
    public_streams = Streams(request.options.seed, run=_shared_name(terms))
    return Prepared(
        terms, request, placed, fed, price, noise, queries, selection, standardization, held_out, public_streams
    )


def request_of(terms: Terms, public: Samples | None = None) -> Request:
    """What the terms ask for, over clients without samples."""
    samples, parts, values = terms.samples, terms.parts, terms.values
    inputs, labels = samples.blank(2)
    none = torch.zeros(terms.clients, dtype=torch.int64)
    nobody = Population(inputs, labels, none, none, frozenset())
    expect((terms.public is None) == (public is None), "public samples where the terms name some", public, "give them")
    task = Task(
        terms.federation.name,
        nobody,
        inputs[:0],
        labels[:0],
        samples.classes,
        partial(logistic, samples.shape, 1),
        samples.loss_function,
        samples.seen,
        public_samples=public,
        prepared_by="sample" if samples.schema is None else samples.schema.prepared_by,
        client_names=terms.federation.names,
        class_names=samples.class_names,
        encoder=samples.encoder,
    )
    method = parts.make("method", **parts.make_if_chosen("server"))
    cohort = parts.make("cohort")
    model = ModelSource(parts.chosen["model"], parts.arguments("model", shape=task.shape, classes=task.outputs))
    epsilon, delta = values.get("epsilon"), values.get("delta")
    method = counted_on(method, cohort, terms)
    return Request(method, task, terms.rounds, cohort, epsilon, delta, model, terms.options, terms.adaptation)


def _people(
    request: Request, placed: Placed, client: int | None, rows: Samples | None
) -> tuple[Population, Population | None]:
    """Whose samples are here, and those of them that are held out for validation."""
    clients, options = request.task.clients, request.options
    private = options.validation == "private"
    if client is None or rows is None:
        return placed.population, placed.population if private else None
    own, held_out = Population.of_one(*rows, client, clients), None
    expect(len(rows[1]) > 0, "at least one row", 0, "check the data of this node")
    if private:
        split = split_validation(replace(request.task, population=own), options.validation_fraction, options.seed)
        own, held_out = (
            Population.of_one(people.inputs, people.labels, client, clients)
            for people in (split[0].population, split[1])
        )
    device, dtype = placed.w.device, placed.w.dtype
    return own.to(device, dtype), None if held_out is None else held_out.to(device, dtype)


def _sizes(terms: Terms, method: Method, population: Population, client: int | None) -> Sequence[int]:
    """The numbers of samples that noise and prices are computed from: a node's own, or those that were declared, where
    noise is the same for all."""
    declared = declared_sizes(terms)
    if client is None:
        return declared or [1] * terms.clients
    own = int(population.counts[client])
    if declared is not None:
        found = f"{own} rows"
        expect(own == declared[client], f"{declared[client]} rows to train on, as declared", found, "ask for new terms")
        return declared if method.local.private is None else population.counts.tolist()
    return population.counts.tolist()


def declared_sizes(terms: Terms) -> list[int] | None:
    """How many rows of each node are trained on, where numbers of rows are declared."""
    sizes, options = terms.federation.sizes, terms.options
    if sizes is None or options.validation != "private":
        return None if sizes is None else list(sizes)
    return left_by_validation(sizes, options.validation_fraction, options.seed)


def _noise(terms: Terms, request: Request, price: PriceTerms, client: int | None) -> Noise:
    """Calibrated noise. A server needs none where every node has its own, and messages are private by themselves."""
    method = request.method
    own = method.local.private is not None or terms.federation.sizes is None
    if client is not None or method.unit is ProtectedUnit.CLIENT or not own:
        return price.noise(method, request.epsilon, request.delta)
    known = method.mechanism.noise_multiplier
    return Noise(with_noise(method, 1.0 if known is None else known), (), {})


def _streams(terms: Terms, client: int | None) -> Streams:
    """Everything random on one side. In a deployment all that protects somebody comes from the system, and a node's
    batches from a seed that nobody else knows: they are kept nowhere."""
    if terms.test_mode:
        return Streams(terms.options.seed, run=_shared_name(terms))
    seed = terms.options.seed if client is None else secrets.randbits(256)
    return Streams(seed, secure=True, run=_shared_name(terms), repeatable=False)


def _shared_name(terms: Terms) -> str:
    return f"test {terms.digest}" if terms.test_mode else terms.digest


def _public_median(placed: Placed) -> float:
    if placed.public_samples is None:
        raise CloisterError("Expected public samples, found none: name some in [public].")
    return public_median(placed.objective, placed.w, placed.public_samples)


def finite(tensor: Tensor) -> bool:
    """Whether all numbers are."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(bool(torch.isfinite(end)) for end in tensor.aminmax())  # in a twentieth of the time of all of them
