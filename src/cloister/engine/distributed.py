"""One cohort over many processes: `torchrun ... cloister run ...` on several GPUs or machines.

Rank 0 is the server: it alone keeps the ledger, draws cohorts and noise, steps and writes. For each round it sends the
model and the cohort to the other ranks; every rank trains its share of the clients with the same engine, and the sums
are added by an all-reduce. torch.distributed does the talking (NCCL between GPUs, Gloo between CPUs).
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cloister.core.state import Tensors, flatten, unflatten
from cloister.errors import RankLost
from cloister.round import Engine, Federation, Offer, RoundPlan, Sum
from cloister.round.answer import total_of

_STOP = 0  # in place of a round's number, which starts from 1


@dataclass(frozen=True)
class Ranks:
    """This process among the others."""

    rank: int
    size: int

    @property
    def is_leader(self) -> bool:
        """Whether this is the process that keeps the ledger."""
        return self.rank == 0

    def broadcast(self, value: Any = None) -> Any:
        """What rank 0 says, on every rank."""
        values = [value]
        with _lost():
            dist.broadcast_object_list(values)
        return values[0]

    def collect(self, value: Any) -> list[Any]:
        """What every rank says, on every rank, by rank."""
        values: list[Any] = [None] * self.size
        with _lost():
            dist.all_gather_object(values, value)
        return values


def join() -> Ranks | None:
    """Meet the other processes that torchrun started; None where this is the only one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        atexit.register(leave)  # threads of connections that are open when the interpreter ends can abort it
    return Ranks(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """Close the connections to the other processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: str) -> str:
    """The GPU of this process, where several of one machine take part."""
    shared = device == "cuda" and int(os.environ.get("WORLD_SIZE", "1")) > 1
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if shared else device


@dataclass(frozen=True)
class Sharded:
    """An engine on rank 0 that has the other ranks compute their share of every cohort."""

    inner: Engine
    ranks: Ranks

    @property
    def name(self) -> str:
        return f"{self.inner.name} on {self.ranks.size} ranks"

    @property
    def chunk(self) -> int:
        return self.inner.chunk

    def total(self, plan: RoundPlan) -> Sum:
        offer = plan.offer
        with _lost():
            _send([offer.round, len(plan.clients), len(offer.clients)])
            dist.broadcast(plan.clients, 0)
            dist.broadcast(offer.clients, 0)
            dist.broadcast(offer.w, 0)
            told = _on_host(flatten(offer.broadcast)), _on_host(plan.client_state), offer.noise_scale
            dist.broadcast_object_list([told])
            return _sum_over_ranks(self, plan)

    def dismiss(self) -> None:
        """Tell the other ranks that no round follows."""
        with _lost():
            _send([_STOP, 0, 0])


def assist(engine: Engine, ranks: Ranks, fed: Federation, like: Tensor) -> None:
    """What every rank but the first does: its share of each round, until it is dismissed."""
    sharded, w = Sharded(engine, ranks), torch.empty_like(like)
    while True:
        with _lost():
            round, clients, asked = _receive()
            if round == _STOP:
                return
            who, cohort = torch.empty(clients, dtype=torch.int64), torch.empty(asked, dtype=torch.int64)
            dist.broadcast(who, 0)
            dist.broadcast(cohort, 0)
            dist.broadcast(w, 0)
            heard: list[Any] = [None]
            dist.broadcast_object_list(heard)
            told, client_state = ({name: tensor.to(w.device) for name, tensor in part.items()} for part in heard[0][:2])
            offer = Offer(round, cohort, w, unflatten(told), heard[0][2])
            _sum_over_ranks(sharded, RoundPlan.of(fed, offer, who, client_state))


def _sum_over_ranks(sharded: Sharded, plan: RoundPlan) -> Sum:
    mine = plan.by_size[sharded.ranks.rank :: sharded.ranks.size].sort().values  # shares of about the same work
    total, nonfinite = total_of(replace(plan, clients=mine), sharded.inner)
    dist.all_reduce(total)
    dist.all_reduce(nonfinite)
    for table in plan.client_state.values():  # every rank has new rows for its own clients
        others = torch.ones(len(table), dtype=torch.bool)
        others[mine] = False
        took_part = torch.zeros(len(table), dtype=torch.bool)
        took_part[plan.clients] = True
        rows = table.clone()
        rows[others.to(table.device)] = 0
        dist.all_reduce(rows)
        took_part = took_part.to(table.device)
        table[took_part] = rows[took_part]
    return total, nonfinite


def _on_host(tensors: Tensors) -> Tensors:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _send(header: list[int]) -> None:
    dist.broadcast(torch.tensor(header), 0)


def _receive() -> list[int]:
    header = torch.zeros(3, dtype=torch.int64)
    dist.broadcast(header, 0)
    numbers: list[int] = header.tolist()
    return numbers


@contextmanager
def in_words_when_stopped() -> Iterator[None]:
    """torchrun stops all processes when one is gone, often before this one has noticed: say what that means.

    Once something went wrong, this process is about to end by itself: no further signal may keep it from saying why.
    """

    def stop(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _gone(RuntimeError("torchrun stopped the others"))

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    signal.signal(signal.SIGTERM, before)


@contextmanager
def _lost() -> Iterator[None]:
    """A rank that is gone ends the run for all, in words; what was charged stays charged."""
    try:
        yield
    except dist.DistError as error:
        raise _gone(error) from error
    except RuntimeError as error:
        if any(word in str(error) for word in ("gloo", "NCCL", "onnection", "Broken pipe", "Socket")):
            raise _gone(error) from error
        raise


def _gone(error: Exception) -> RankLost:
    reason = str(error).strip().splitlines()[-1][:200] if str(error).strip() else type(error).__name__
    return RankLost(
        f"Expected every process of the run to answer, found that one was lost ({reason}): what was spent is in the "
        "ledger, so start the processes again with `cloister resume` on the run's folder."
    )
