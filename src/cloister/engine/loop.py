"""One client after the other, each with its own shapes; nothing is padded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from cloister.client.batches import Batches, Chunk, Work, local_steps, shapes_of, work_of
from cloister.core import Tensors
from cloister.engine.workers import total_of_workers
from cloister.round.answer import Advance, RoundPlan, Sending, Sum, message_of, steps_of


@dataclass(frozen=True)
class Loop:
    """Client by client; plans are made for a few clients at once.

    With `workers` > 1 as many clients are computed side by side, each on one core: in `processes`, or in threads, which
    wait for one another where they run Python. That suits layers that take long (convolutions), not those that are over
    at once. Messages are added by client number, however many workers there are.

    With `channels_last` a batch of images is laid out pixel by pixel, as some layers want it. It is the same batch, and
    the result differs by rounding.
    """

    chunk: int = 64
    workers: int = 1
    processes: bool = False
    channels_last: bool = False
    name: str = "loop"

    def total(self, plan: RoundPlan) -> Sum:
        if self.processes:
            way = "channels last" if self.channels_last else ""
            return total_of_workers(plan, self.workers, way, partial(_alone, self.channels_last))
        fed, local = plan.fed, plan.fed.method.local
        steps, each = steps_of(fed, autograd, False), map if self.workers == 1 else _pool(self.workers).map
        total, nonfinite = None, torch.zeros((), dtype=torch.int64, device=plan.offer.w.device)
        for clients in torch.split(plan.clients, self.chunk):
            chunk, drawn = plan.chunk(clients), plan.drawn(clients, len(clients)).batches
            shapes = shapes_of(fed.population.counts[clients], local)
            work = work_of(fed.population, local, shapes, chunk, drawn)
            one = partial(_message, plan, steps, chunk, work, bool(drawn), self.channels_last)
            for place, (message, finite, state) in enumerate(each(one, range(len(clients)))):
                total = message if total is None else total + message
                nonfinite += ~finite
                if plan.client_state:
                    client_state = {name: state[name][None] for name in plan.client_state}
                    plan.remember(clients[place : place + 1], client_state)
        assert total is not None
        return total, nonfinite


def _alone(channels_last: bool, plan: RoundPlan, chunk: Chunk) -> tuple[Tensor, Tensor, Tensors]:
    """What the one client of a chunk sends: as `_message`."""
    fed, local, client = plan.fed, plan.fed.method.local, chunk.clients
    drawn = plan.drawn(client, 1).batches
    work = work_of(fed.population, local, shapes_of(fed.population.counts[client], local), chunk, drawn)
    return _message(plan, steps_of(fed, autograd, False), chunk, work, bool(drawn), channels_last, 0)


def _message(
    plan: RoundPlan, steps: list[Advance], chunk: Chunk, stacked: Work, exact: bool, channels_last: bool, place: int
) -> tuple[Tensor, Tensor, Tensors]:
    """What one client of a chunk sends, whether its update was finite, and what it has trained.

    `exact`: its batches, which were drawn, differ in size, and are not padded.
    """
    state, work = trained(plan, steps, chunk, stacked, exact, channels_last, place)
    return *message_of(plan.fed, chunk.w, chunk.broadcast, state, Sending.of(work)), state


def trained(
    plan: RoundPlan, steps: list[Advance], chunk: Chunk, stacked: Work, exact: bool, channels_last: bool, place: int
) -> tuple[Tensors, Work]:
    """What one client of a chunk has trained, before anything happens to it, and its work; `exact` as in `_message`."""
    fed, w, work = plan.fed, chunk.w, _of_one(stacked, place)
    noise = plan.noise(chunk.clients[place : place + 1].cpu(), 1)
    state = {**fed.method.local.init(w), **work.start}
    for phase, batch in local_steps(fed.population, work, _widths(work) if exact else None, noise):
        if channels_last and batch.inputs.dim() == 4:
            batch = replace(batch, inputs=batch.inputs.to(memory_format=torch.channels_last))
        state = steps[phase](w, chunk.round, state, batch)
    return state, work


@cache  # threads are kept, and with them the copies of the model that they work on
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "client", initializer=torch.set_num_threads, initargs=(1,))


def _of_one(work: Work, place: int) -> Work:
    """One client's work, without the padding that made it as large as the others'."""
    phases = []
    for samples, mask, divisor, key, live in work.phases:
        steps, width = int(live[place].sum()), int(mask[place].any(0).sum())
        where, wide = (place, slice(steps)), (place, slice(steps), slice(width))
        phases.append(Batches(samples[wide], mask[wide], divisor[where], key[where], live[where]))
    start = {name: state[place] for name, state in work.start.items()} if work.start else {}
    return Work(tuple(phases), work.key[place], work.share[place], start, work.samples[place])


def _widths(work: Work) -> list[list[int] | None]:
    """How many samples a client's steps really have: batches that are drawn differ in size."""
    return [batches.mask.sum(1).clamp(min=1).tolist() for batches in work.phases]


def autograd(function: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """`torch.func.grad` without its overhead, for code that runs under no transform."""

    def gradient(argument: Any, *rest: Any) -> Any:
        with torch.enable_grad():
            several = isinstance(argument, tuple)
            leaves = [leaf.detach().requires_grad_() for leaf in (argument if several else (argument,))]
            found = function(tuple(leaves) if several else leaves[0], *rest)
            value, aux = found if has_aux else (found, None)
            grads = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        gradient = tuple(grads) if several else grads[0]
        return (gradient, aux) if has_aux else gradient

    return gradient
