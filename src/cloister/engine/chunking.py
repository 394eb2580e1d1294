"""A chunk of clients computed at once: their training, step by step, and the sum of their messages, under `vmap`."""

from __future__ import annotations

import math
from collections import Counter
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
from cloister.engine.gradients import grad
from cloister.round import Federation
from cloister.round.answer import Advance, Sending, Sum, message_of, steps_of

Compile = Callable[[Callable[..., tuple[Tensor, ...]]], Callable[..., Any]]
"""From a function of tensors that returns a tuple of tensors to one that does the same, faster."""


def same_program(one: Federation | None, other: Federation) -> bool:
    """Whether what was compiled for one federation serves another: with the same model and method, on other data."""
    return one is not None and _program_of(one) == _program_of(other)


def _program_of(fed: Federation) -> tuple[object, ...]:
    return fed.objective, fed.method, fed.precision, fed.denominator, id(fed.public_samples)


def places_for(fed: Federation, clients: int, chunk: int) -> int:
    """For how many clients a chunk is laid out: the expected number has a layout of its own, others share a few."""
    if clients in (chunk, round(fed.denominator), round(fed.denominator) % chunk):
        return clients
    return min(rounded_up(clients, finer=1), chunk)


def constant_places(fed: Federation, most: int, processes: int = 1) -> int:
    """For how many clients every chunk of a run is laid out, `most` at most, where another layout is another program.

    Of cohorts that are drawn, as many that the places of all chunks are few on average: a larger chunk leaves more of
    them empty, a smaller one is computed less well (as if `_IDLE` more clients were in it) and comes more often.
    """
    expected, everybody = fed.denominator / processes, fed.population.clients
    if fed.cohort.name != "poisson":
        alike = max(1, math.ceil(expected))
        return math.ceil(alike / math.ceil(alike / most))
    deviation = math.sqrt(max(expected * (1 - fed.denominator / everybody), 0.0))
    sizes = [max(1, round(expected + deviation * (i - 15) / 5)) for i in range(31)]  # from -3 to 3 deviations
    weights = [math.exp(-(((i - 15) / 5) ** 2) / 2) for i in range(31)]

    def cost(places: int) -> float:
        return sum(w * math.ceil(n / places) for n, w in zip(sizes, weights, strict=True)) * (places + _IDLE)

    return min(range(1, min(max(sizes), most) + 1), key=cost)


_IDLE = 8.0


class ChunkProgram:
    """The two functions that a chunk is made of, a step of training and the sum of messages, as an engine compiles
    them. Neither keeps data: they serve any population.

    In the first step of a round all clients have the same parameters, in the others not. With `shared_start` the first
    step is a program of its own, which is worth it where a program costs little. `fuses`: what compiles joins
    operations; then, on a GPU, rows of parameters start at multiples of 32 numbers, which costs another one.
    """

    def __init__(
        self, fed: Federation, ragged: bool, compile: Compile, fuses: bool = True, shared_start: bool = True
    ) -> None:
        self.fed, self.local, self.fuses, self.shared_start = fed, fed.method.local, fuses, shared_start
        zeros, no_key = torch.zeros(fed.objective.layout.size), torch.zeros((), dtype=torch.int64)
        own = self.local.own(zeros, no_key) if self.local.own else {}
        self.names = list({**self.local.init(zeros), **own, **self.local.told})
        steps = steps_of(fed, grad, ragged)
        self._first = compile(partial(self._step, steps[0], None))
        self._later = [compile(partial(self._step, step, 0)) for step in steps]
        self._messages = cache(lambda told: compile(partial(self._sum, told)))

    def total(
        self,
        population: Population,
        chunk: Chunk,
        shapes: tuple[Shape, ...],
        drawn: Drawn,
        steps: int | None = None,
    ) -> tuple[Sum, Tensors]:
        """The sum over a chunk of clients, and what they have trained; `steps` cuts each phase short, to warm up.

        Nothing in here waits for the device or depends on the numbers in a tensor, so it can be captured (where nothing
        is drawn on the host).
        """
        work = work_of(population, self.local, shapes, chunk, drawn.batches)
        state, clients, size = self.local.init(chunk.w), len(work.key), len(chunk.w)
        shared = self.shared_start and not work.start
        if not shared:
            spread = {n: s.expand(clients, *s.shape) for n, s in state.items()} | work.start
            state = {n: self._laid_out(s, chunk.w) for n, s in spread.items()}
        states = [state[name] for name in self.names]
        step = self._first if shared else None
        widths = [None if drawn_batches is None else drawn_batches.widths for drawn_batches in drawn.batches] or None
        taken: Counter[int] = Counter()
        for phase, batch in local_steps(population, work, widths, drawn.noise):
            taken[phase] += 1
            if steps is not None and taken[phase] > steps:
                continue
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
        gap = self._gap(w)
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
        samples: Tensor,
        *rest: Tensor,
    ) -> Sum:
        """From what k clients have trained to the sum of the messages that count."""
        broadcast = unflatten(dict(zip(told, rest[: len(told)], strict=True)))
        states = dict(zip(self.names, rest[len(told) :], strict=True))
        with self._convolutions(w):
            one = partial(message_of, self.fed, w, broadcast)
            messages, finite = torch.func.vmap(one)(states, Sending(has_data, keys, shares, samples))
        messages = torch.where(counted[:, None], messages, torch.zeros_like(messages))
        return self.together(messages), (counted & ~finite).sum()

    def together(self, messages: Tensor) -> Tensor:
        """What is wanted of k messages [k, m]: their sum. An audit wants each (`auditing/canary_samples.py`)."""
        return messages.sum(0)

    def _gap(self, w: Tensor) -> int:
        return -w.shape[0] % _ALIGNED if w.is_cuda and self.fuses else 0

    def _laid_out(self, state: Tensor, w: Tensor) -> Tensor:
        """A state of every client in rows of its own, as a step leaves them: one layout, one program."""
        gap = self._gap(w)
        if not gap or state.shape[1:] != w.shape:
            return state.clone(memory_format=torch.contiguous_format)  # of its own: a step may change it in place
        return state.new_empty(len(state), len(w) + gap)[:, : len(w)].copy_(state)  # nobody reads the gap

    def _convolutions(self, w: Tensor) -> AbstractContextManager[object]:
        return PerClient(self.fed.precision) if w.is_cuda else nullcontext()


_ALIGNED = 32
"""On a GPU, rows of parameters start at multiples of this many numbers: libraries are faster on aligned matrices."""

_FIELDS = 7
"""Of a batch."""


def _fields(batch: Batch) -> tuple[Tensor, ...]:
    return batch.inputs, batch.labels, batch.mask, batch.count, batch.key, batch.live, batch.noise
