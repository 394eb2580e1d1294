"""A chunk of clients computed at once: their training, step by step, and the sum of their messages, under `vmap`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from cloister.client.batches import Chunk, Drawn, Shape, local_steps, rounded_up, work_of
from cloister.client.population import Population
from cloister.core import Batch, Tensors
from cloister.core.state import flatten, unflatten
from cloister.engine.cuda.convolutions import PerClient
from cloister.round import Federation
from cloister.round.answer import Advance, Sending, Sum, message_of, steps_of

Compile = Callable[[Callable[..., tuple[Tensor, ...]]], Callable[..., Any]]
"""From a function of tensors that returns a tuple of tensors to one that does the same, faster."""


def same_program(one: Federation | None, other: Federation) -> bool:
    """Whether what was compiled for one federation serves another: with the same model and method, on other data."""
    return one is not None and _program_of(one) == _program_of(other)


def _program_of(fed: Federation) -> tuple[object, ...]:
    return fed.objective, fed.method, fed.precision, id(fed.public_samples)


def places_for(fed: Federation, clients: int, chunk: int) -> int:
    """For how many clients a chunk is laid out: the expected number has a layout of its own, others share a few."""
    if clients in (chunk, round(fed.denominator), round(fed.denominator) % chunk):
        return clients
    return min(rounded_up(clients, finer=1), chunk)


class ChunkProgram:
    """The two functions that a chunk is made of, a step of training and the sum of messages, as an engine compiles
    them. Neither keeps data: they serve any population.

    In the first step of a round all clients have the same parameters, in the others not: there are two programs. Where
    clients start with something of their own, there is one. `aligned`: on a GPU, rows of parameters start at multiples
    of 32 numbers.
    """

    def __init__(self, fed: Federation, ragged: bool, compile: Compile, aligned: bool = True) -> None:
        self.fed, self.local, self.aligned = fed, fed.method.local, aligned
        zeros, no_key = torch.zeros(fed.objective.layout.size), torch.zeros((), dtype=torch.int64)
        own = self.local.own(zeros, no_key) if self.local.own else {}
        self.names = list({**self.local.init(zeros), **own})
        steps = steps_of(fed, torch.func.grad, ragged)
        self._first = compile(partial(self._step, steps[0], None))
        self._later = [compile(partial(self._step, step, 0)) for step in steps]
        self._messages = cache(lambda told: compile(partial(self._sum, told)))

    def total(
        self, population: Population, chunk: Chunk, shapes: tuple[Shape, ...], drawn: Drawn
    ) -> tuple[Sum, Tensors]:
        """The sum over a chunk of clients, and what they have trained.

        Nothing in here waits for the device or depends on the numbers in a tensor, so it can be captured (where nothing
        is drawn on the host).
        """
        work = work_of(population, self.local, shapes, chunk, drawn.batches)
        state, clients = self.local.init(chunk.w), len(work.key)
        if work.start:
            state = {n: s.expand(clients, -1).contiguous() for n, s in state.items()} | work.start
        states = [state[name] for name in self.names]
        step, size = None if work.start else self._first, chunk.w.shape[0]
        widths = [None if drawn_batches is None else drawn_batches.widths for drawn_batches in drawn.batches] or None
        for phase, batch in local_steps(population, work, widths, drawn.noise):
            new = (step or self._later[phase])(chunk.w, chunk.round, *_fields(batch), *states)
            states, step = [state[:, :size] for state in new], None
        if step is not None:  # nobody has data
            states = [state.expand(clients, *state.shape).contiguous() for state in states]
        told = flatten(chunk.broadcast)
        messages = self._messages(tuple(told))
        total, nonfinite = messages(chunk.w, chunk.counted, *Sending.of(work), *told.values(), *states)
        return (total, nonfinite), dict(zip(self.names, states, strict=True))

    def _step(self, step: Advance, dim: int | None, w: Tensor, round: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """A step of all clients; `dim` says whether every client has a state of its own."""

        def one(*tensors: Tensor) -> tuple[Tensor, ...]:
            state = dict(zip(self.names, tensors[_FIELDS:], strict=True))
            new = step(w, round, state, Batch(*tensors[:_FIELDS]))
            return tuple(new[name] for name in self.names)

        with self._convolutions(w):
            dims = (0,) * _FIELDS + (dim,) * len(self.names)
            new: tuple[Tensor, ...] = torch.func.vmap(one, in_dims=dims)(*tensors)
        gap = -w.shape[0] % _ALIGNED if w.is_cuda and self.aligned else 0
        if not gap:
            return new
        zeros = torch.zeros(len(new[0]), gap, dtype=w.dtype, device=w.device)
        return tuple(torch.cat([state, zeros], 1) if state.shape[1] == w.shape[0] else state for state in new)

    def _sum(
        self,
        told: tuple[str, ...],
        w: Tensor,
        counted: Tensor,
        has_data: Tensor,
        keys: Tensor,
        shares: Tensor,
        *rest: Tensor,
    ) -> Sum:
        """From what k clients have trained to the sum of the messages that count."""
        broadcast = unflatten(dict(zip(told, rest[: len(told)], strict=True)))
        states = dict(zip(self.names, rest[len(told) :], strict=True))
        with self._convolutions(w):
            one = partial(message_of, self.fed, w, broadcast)
            messages, finite = torch.func.vmap(one)(states, Sending(has_data, keys, shares))
        messages = torch.where(counted[:, None], messages, torch.zeros_like(messages))
        return messages.sum(0), (counted & ~finite).sum()

    def _convolutions(self, w: Tensor) -> AbstractContextManager[object]:
        return PerClient(self.fed.precision) if w.is_cuda else nullcontext()


_ALIGNED = 32
"""On a GPU, rows of parameters start at multiples of this many numbers: libraries are faster on aligned matrices."""

_FIELDS = 7
"""Of a batch."""


def _fields(batch: Batch) -> tuple[Tensor, ...]:
    return batch.inputs, batch.labels, batch.mask, batch.count, batch.key, batch.live, batch.noise
