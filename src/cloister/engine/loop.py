"""One client after the other, each with its own shapes; nothing is padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cloister.federation import Federation
from cloister.joints import State
from cloister.round import Sum, client_round, steps_of
from cloister.work import Batches, Turn, Work, shapes_of, work_of

Message = tuple[Tensor, Tensor, State]


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

        def one(client: Tensor, work: Work) -> Message:
            noise = turn.noise(fed, client[None], 1)
            return client_round(fed, turn.w, turn.said, moment.number, work, steps, noise, exact=True)

        total, finite = None, torch.zeros((), dtype=torch.int64, device=turn.w.device)
        for clients in torch.split(turn.clients, self.chunk):
            there, shares = clients.to(turn.w.device), turn.shares(fed, clients)
            kept = {name: table[there] for name, table in turn.kept.items()}
            lots = turn.lots(fed, clients, len(clients))
            stacked = work_of(fed, shapes_of(fed, clients), moment, turn.w, there, shares, lots, kept)
            works = [_of_one(stacked, place) for place in range(len(clients))]
            for start in range(0, len(works), self.workers):
                some = slice(start, start + self.workers)
                messages = _each(one, clients[some], works[some], self.workers)
                for client, (message, is_finite, state) in zip(clients[some], messages, strict=True):
                    total = message if total is None else total + message
                    finite += is_finite
                    turn.remember(client[None], {name: state[name][None] for name in turn.kept})
        assert total is not None
        return total, len(turn.clients) - finite


def _each(
    one: Callable[[Tensor, Work], Message], clients: Tensor, works: list[Work], workers: int
) -> Iterable[Message]:
    return map(one, clients, works) if workers == 1 else _pool(workers).map(one, clients, works)


@cache  # threads are kept, and with them the copies of the model that they work on
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "client", initializer=torch.set_num_threads, initargs=(1,))


def _of_one(work: Work, place: int) -> Work:
    """One client's work, without the padding that made it as large as the others'."""
    phases = []
    for batches in work.phases:
        samples, mask, count, key, live = (column[place] for column in batches)
        steps, width = int(live.sum()), int(mask.any(0).sum())
        phases.append(Batches(samples[:steps, :width], mask[:steps, :width], count[:steps], key[:steps], live[:steps]))
    start = {name: state[place] for name, state in work.start.items()}
    return Work(tuple(phases), work.key[place], work.share[place], start)


def _autograd(function: Callable[[Any], Any], has_aux: bool = False) -> Callable[[Any], Any]:
    """`torch.func.grad` without its overhead, for code that runs under no transform."""

    def gradient(argument: Any) -> Any:
        with torch.enable_grad():
            several = isinstance(argument, tuple)
            leaves = [leaf.detach().requires_grad_() for leaf in (argument if several else (argument,))]
            found = function(tuple(leaves) if several else leaves[0])
            value, aux = found if has_aux else (found, None)
            grads = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        gradient = tuple(grads) if several else grads[0]
        return (gradient, aux) if has_aux else gradient

    return gradient
