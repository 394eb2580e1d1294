"""Queries of a run, as both sides know them from the terms: what is asked, what it costs, what is done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cloister.client.gradient_median import HIGHEST, LOWEST
from cloister.client.standardization import InputQuery
from cloister.core import Tensors
from cloister.deploy.halves.prepared import Prepared, declared_sizes
from cloister.deploy.halves.steps import VALIDATION, Step
from cloister.errors import CloisterError, expect
from cloister.privacy.ledger import Charge
from cloister.round.queries import Query, QueryAnswer
from cloister.runs.private_validation import validation_vectors

PREFIX = "released/"


def query_of(side: Prepared, step: Step, w: Tensor) -> Query:
    """What is asked in a step, at a model."""
    request, fed = side.request, side.fed
    planned = next(query for query in side.queries.planned if query.name == step.what)
    noises = side.queries.noises(planned, request.epsilon, request.delta, [1] * fed.population.clients)
    if step.what == VALIDATION:
        accuracy = side.selection.watch == "accuracy"
        return Query(step.what, 1, validation_vectors(fed.objective, request.task.loss, accuracy, w), noises)
    for asked in () if side.standardization is None else side.standardization.queries:
        if asked.name == step.what:
            return Query(step.what, asked.length, partial(_of_inputs, asked), noises, asked.second_moments)
    first = fed.method.first_query
    if first is None or first.name != step.what:
        raise CloisterError(f"Expected a query of these terms, found {step.what}: refuse it.")
    return Query(step.what, first.length, lambda x, y: first.vectors(fed.objective, w, x, y), noises)


def _of_inputs(asked: InputQuery, inputs: Tensor, labels: Tensor) -> Tensor:
    return asked.vectors(inputs)


def charge_of(side: Prepared, step: Step, unit: str, sizes: Sequence[int]) -> Charge | None:
    """What an answer costs an account; `sizes` are the clients' numbers of samples that are asked about."""
    request = side.request
    planned = next(query for query in side.queries.planned if query.name == step.what)
    noises = side.queries.noises(planned, request.epsilon, request.delta, list(sizes))
    return side.queries.charges(noises, list(sizes)).get(unit)


def sizes_asked(side: Prepared, step: Step) -> list[int]:
    """How many samples of each client a query is about, by declaration; any number where clients are protected."""
    sizes, left = side.terms.federation.sizes, declared_sizes(side.terms)
    if sizes is None or left is None:
        return [1] * side.terms.clients
    return [size - rest for size, rest in zip(sizes, left, strict=True)] if step.what == VALIDATION else left


def released_by(side: Prepared, step: Step, found: QueryAnswer) -> Tensors:
    """What an answer makes known, which is put in its place here; to be kept, and told to everybody."""
    learned = side.standardization
    for asked in () if learned is None else learned.queries:
        if asked.name == step.what:
            asked.receive(found.mean, found.noise)
            assert learned is not None
            return learned.released()
    first = side.fed.method.first_query
    assert first is not None
    released = first.answer(found.mean, found.noise)
    first.load(released)
    return released


def load_released(side: Prepared, tensors: Mapping[str, Tensor]) -> None:
    """Put what was released before the first round in its place, where it is what it may be."""
    given = {name.removeprefix(PREFIX): one for name, one in tensors.items() if name.startswith(PREFIX)}
    learned, first = side.standardization, side.fed.method.first_query
    wanted = {} if learned is None else learned.released()
    number = {} if first is None else {first.name: torch.zeros(1, dtype=torch.float64)}
    loads = (None if learned is None else learned.load, None if first is None else first.load)
    for parts, load in zip((wanted, number), loads, strict=True):
        mine = {name: given.pop(name) for name in parts if name in given}
        if not mine:
            continue
        expect(set(mine) == set(parts), f"{sorted(parts)} together", sorted(mine), "refuse the offer")
        for name, like in parts.items():
            _expect_like(name, mine[name], like)
        assert load is not None
        load(mine)
    expect(not given, "nothing released but by queries of these terms", sorted(given), "refuse the offer")


def _expect_like(name: str, found: Tensor, like: Tensor) -> None:
    """Of the form that is known; and of usable size. Whatever the numbers are, what a row contributes is clipped."""
    alike = (found.shape, found.dtype) == (like.shape, like.dtype)
    expect(alike, f"{name} of {like.dtype}, {tuple(like.shape)}", f"{found.dtype}, {tuple(found.shape)}", "refuse it")
    least, most = {"scale": (1e-30, 1e30), "median": (LOWEST * 0.99, HIGHEST * 1.01)}.get(name, (-1e30, 1e30))
    inside = bool(((found >= least) & (found <= most)).all())
    expect(inside, f"{name} between {least:g} and {most:g}", "others", "refuse the offer")
