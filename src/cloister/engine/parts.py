"""What a chunk of clients is made of, computed for all of them at once under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from cloister.batches import Population, Shape, rounded_up
from cloister.engine.convolutions import PerClient
from cloister.joints import State
from cloister.round import Federation, Moment, Sum, Work, message_of, one_step, trained, work_of


def same_parts(one: Federation | None, other: Federation) -> bool:
    """Whether the parts of one federation serve another: the same model, method and precision on whatever data."""
    if one is None:
        return False
    return (one.problem, one.method, one.precision) == (other.problem, other.method, other.precision)


def places_for(fed: Federation, clients: int, chunk: int) -> int:
    """For how many clients a chunk is laid out: the expected number has a layout of its own, others share a few."""
    if clients in (chunk, round(fed.denominator), round(fed.denominator) % chunk):
        return clients
    return min(rounded_up(clients, finer=1), chunk)


@dataclass(frozen=True)
class Parts:
    """The two functions that a chunk is made of; an engine may have compiled them.

    `train(population, w, round, work)` is what k clients have trained, a state of [k, ...], and
    `finish(w, has_data, counted, shares, states)` the sum of their messages. Neither keeps data: they serve any
    population.
    """

    train: Callable[[Population, Tensor, Tensor, Work], State]
    finish: Callable[[Tensor, Tensor, Tensor, Tensor, State], Sum]

    @classmethod
    def of(cls, fed: Federation, ragged: bool) -> Parts:
        """As they are, under `vmap`."""
        step = partial(one_step, fed, torch.func.grad, ragged)

        def train(population: Population, w: Tensor, round: Tensor, work: Work) -> State:
            here = replace(fed, population=population)
            with PerClient(fed.precision) if w.is_cuda else nullcontext():
                return torch.func.vmap(lambda one: trained(here, w, round, one, step))(work)

        return cls(train, partial(sum_of_messages, fed))


def sum_of_chunk(
    fed: Federation,
    w: Tensor,
    moment: Moment,
    shape: Shape,
    clients: Tensor,
    shares: Tensor,
    counted: Tensor | None = None,
    parts: Parts | None = None,
) -> Sum:
    """The sum over some clients, computed at once; where `counted` [k] is False, a client only fills a place.

    Nothing in here waits for the device or depends on the numbers in a tensor, so it can be captured.
    """
    parts = parts or Parts.of(fed, shape.ragged)
    work = work_of(fed, shape, moment, clients, shares)
    states = parts.train(fed.population, w, moment.number, work)
    has_data = work.mask.flatten(1).any(1)
    counted = torch.ones_like(has_data) if counted is None else counted
    return parts.finish(w, has_data, counted, shares, states)


def sum_of_messages(
    fed: Federation, w: Tensor, has_data: Tensor, counted: Tensor, shares: Tensor, states: State
) -> Sum:
    """From what k clients have trained to the sum of the messages that count."""
    messages, finite = torch.func.vmap(partial(message_of, fed, w))(states, has_data, shares)
    messages = torch.where(counted[:, None], messages, torch.zeros_like(messages))
    return messages.sum(0), (counted & ~finite).sum()
