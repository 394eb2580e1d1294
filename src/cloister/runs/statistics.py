"""What is released before the first round: private statistics of the inputs, and what a method asks for."""

from __future__ import annotations

from torch import Tensor

from cloister.client.standardization import InputQuery
from cloister.core import Tensors
from cloister.privacy.ledger import Ledger
from cloister.round.queries import Query, ask
from cloister.runs.prepare import Ready

BEFORE_TRAINING = 0
"""The round in whose name the query is charged."""


def statistics(ready: Ready, ledger: Ledger) -> Tensors:
    """Ask everybody, and set by the answers how inputs are seen; what was released is returned, to be kept.

    A query may use the answers to those before it.
    """
    learned, fed = ready.standardization, ready.fed
    assert learned is not None
    for asked in learned.queries:
        noises = ready.noise_of_query(asked.name)

        def vectors(inputs: Tensor, labels: Tensor, of: InputQuery = asked) -> Tensor:
            return of.vectors(inputs)

        query = Query(asked.name, asked.length, vectors, noises, asked.second_moments)
        charges = ready.queries.charges(noises, fed.population.counts.tolist())
        found = ask(fed, ledger, query, charges, fed.population, BEFORE_TRAINING)
        asked.receive(found.mean, found.noise)
    return learned.released()


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
