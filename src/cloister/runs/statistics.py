"""What is released before the first round: a private mean and variance of the inputs, and what a method asks for."""

from __future__ import annotations

from torch import Tensor

from cloister.core import Tensors
from cloister.privacy.ledger import Ledger
from cloister.round.queries import Query, ask
from cloister.runs.prepare import Ready

BEFORE_TRAINING = 0
"""The round in whose name the query is charged."""


def statistics(ready: Ready, ledger: Ledger) -> Tensors:
    """Ask everybody, and set center and scale of the inputs by the answer; they are returned, to be kept."""
    standardization, fed = ready.standardization, ready.fed
    assert standardization is not None

    def vectors(inputs: Tensor, labels: Tensor) -> Tensor:
        return standardization.moments(inputs)

    noises = ready.noise_of_query("statistics")
    query = Query("statistics", standardization.length, vectors, noises)
    charges = ready.queries.charges(noises, fed.population.counts.tolist())
    found = ask(fed, ledger, query, charges, fed.population, BEFORE_TRAINING)
    standardization.set_from(found.mean, found.noise)
    return standardization.released()


def first_answer(ready: Ready, ledger: Ledger) -> Tensors:
    """Ask everybody what the method wants to know, and put it in its place; it is returned, to be kept."""
    asked, fed = ready.fed.method.first_query, ready.fed
    assert asked is not None

    def vectors(inputs: Tensor, labels: Tensor) -> Tensor:
        return asked.vectors(fed.objective, ready.w, inputs, labels)

    noises = ready.noise_of_query(asked.name)
    query = Query(asked.name, asked.length, vectors, noises)
    charges = ready.queries.charges(noises, fed.population.counts.tolist())
    found = ask(fed, ledger, query, charges, fed.population, BEFORE_TRAINING)
    released = asked.answer(found.mean, found.noise)
    asked.load(released)
    return released
