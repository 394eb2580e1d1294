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
from cloister.federation import Federation
from cloister.joints import State
from cloister.lots import Lots, StepNoise
from cloister.round import Sum, message_of, steps_of, trained
from cloister.work import Moment, Work, work_of


def same_parts(one: Federation | None, other: Federation) -> bool:
    """Whether the parts of one federation serve another: the same model, method and precision on whatever data."""
    if one is None:
        return False
    return _parts_of(one) == _parts_of(other)


def _parts_of(fed: Federation) -> tuple[object, ...]:
    return fed.problem, fed.method, fed.precision, id(fed.public)


def places_for(fed: Federation, clients: int, chunk: int) -> int:
    """For how many clients a chunk is laid out: the expected number has a layout of its own, others share a few."""
    if clients in (chunk, round(fed.denominator), round(fed.denominator) % chunk):
        return clients
    return min(rounded_up(clients, finer=1), chunk)


@dataclass(frozen=True)
class Drawn:
    """What was drawn in secret for a chunk, on the host: lots by phase, and the noise of private steps."""

    lots: list[Lots | None]
    noise: StepNoise | None


@dataclass(frozen=True)
class Parts:
    """The two functions that a chunk is made of; an engine may have compiled them.

    `train(population, w, round, work, drawn)` is what k clients have trained, a state of [k, ...], and
    `finish(w, said, has_data, counted, work, states)` the sum of their messages. Neither keeps data: they serve any
    population.
    """

    train: Callable[[Population, Tensor, Tensor, Work, Drawn], State]
    finish: Callable[[Tensor, State, Tensor, Tensor, Work, State], Sum]

    @classmethod
    def of(cls, fed: Federation, ragged: bool) -> Parts:
        """As they are, under `vmap`."""
        steps = steps_of(fed, torch.func.grad, ragged)

        def train(population: Population, w: Tensor, round: Tensor, work: Work, drawn: Drawn) -> State:
            here = replace(fed, population=population)
            with PerClient(fed.precision) if w.is_cuda else nullcontext():
                return torch.func.vmap(lambda one: trained(here, w, round, one, steps))(work)

        def finish(w: Tensor, said: State, has_data: Tensor, counted: Tensor, work: Work, states: State) -> Sum:
            return sum_of_messages(fed, w, said, has_data, counted, work.key, work.share, states)

        return cls(train, finish)


def sum_of_chunk(
    fed: Federation,
    w: Tensor,
    said: State,
    moment: Moment,
    shapes: tuple[Shape, ...],
    clients: Tensor,
    shares: Tensor,
    counted: Tensor,
    parts: Parts,
    kept: State,
    drawn: Drawn,
) -> tuple[Sum, State]:
    """The sum over some clients, computed at once; where `counted` [k] is False, a client only fills a place.

    Also what they have trained. Nothing in here waits for the device or depends on the numbers in a tensor, so it can
    be captured (where nothing is drawn on the host).
    """
    work = work_of(fed, shapes, moment, w, clients, shares, drawn.lots, kept)
    states = parts.train(fed.population, w, moment.number, work, drawn)
    return parts.finish(w, said, work.has_data, counted, work, states), states


def sum_of_messages(
    fed: Federation,
    w: Tensor,
    said: State,
    has_data: Tensor,
    counted: Tensor,
    keys: Tensor,
    shares: Tensor,
    states: State,
) -> Sum:
    """From what k clients have trained to the sum of the messages that count."""
    with PerClient(fed.precision) if w.is_cuda else nullcontext():
        messages, finite = torch.func.vmap(partial(message_of, fed, w, said))(states, has_data, keys, shares)
    messages = torch.where(counted[:, None], messages, torch.zeros_like(messages))
    return messages.sum(0), (counted & ~finite).sum()
