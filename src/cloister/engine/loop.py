"""One client after the other, each with its own shapes; nothing is padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from cloister.federation import Federation
from cloister.joints import Function
from cloister.round import Batches, Sum, Turn, Work, client_round, shapes_of, steps_of, work_of

Message = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Loop:
    """Client by client; plans are made for a few clients at once.

    With `workers` > 1 as many clients are computed side by side, each in a thread with one core of its own. That
    suits layers that take long (convolutions), not those that are over at once. Messages are added in the order of
    the clients, however many workers there are.
    """

    chunk: int = 64
    workers: int = 1
    name: str = "loop"

    def total(self, fed: Federation, turn: Turn) -> Sum:
        moment = turn.moment(fed)

        steps = steps_of(fed, _autograd, False)

        def one(work: Work) -> Message:
            return client_round(fed, turn.w, turn.said, moment.number, work, steps)

        total, finite = None, torch.zeros((), dtype=torch.int64, device=turn.w.device)
        for clients in torch.split(turn.clients, self.chunk):
            shares = turn.shares(fed, clients)
            stacked = work_of(fed, shapes_of(fed, clients), moment, clients.to(turn.w.device), shares)
            works = [_of_one(stacked, place) for place in range(len(clients))]
            for start in range(0, len(works), self.workers):
                for message, is_finite in _each(one, works[start : start + self.workers], self.workers):
                    total = message if total is None else total + message
                    finite += is_finite
        assert total is not None
        return total, len(turn.clients) - finite


def _each(one: Callable[[Work], Message], works: list[Work], workers: int) -> Iterable[Message]:
    return map(one, works) if workers == 1 else _pool(workers).map(one, works)


@cache  # threads are kept, and with them the copies of the model that they work on
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "client", initializer=torch.set_num_threads, initargs=(1,))


def _of_one(work: Work, place: int) -> Work:
    """One client's work, without the padding that made it as large as the others'."""
    phases = []
    for batches in work.phases:
        samples, mask, real, key = (column[place] for column in batches)
        steps, width = int(mask.any(1).sum()), int(mask.any(0).sum())
        phases.append(Batches(samples[:steps, :width], mask[:steps, :width], real[:steps], key[:steps]))
    return Work(tuple(phases), work.key[place], work.share[place])


def _autograd(function: Function) -> Function:
    """`torch.func.grad` without its overhead, for code that runs under no transform."""

    def gradient(w: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = w.detach().requires_grad_()
            return torch.autograd.grad(function(leaf), leaf)[0]

    return gradient
