"""Processes that compute clients side by side: forked once for a federation, and kept over its rounds.

A forked process has the model, the method and everybody's samples as they are, whatever they are made of; nothing has
to be sent but the round's model, which lies in memory that all of them share, and so do the messages that come back.
Messages are added in the order of client numbers, so that neither the number of processes nor their speed changes a bit
of the sum.

Forking is safe here, though torch may have threads by then: a worker uses one core, so it never asks for the threads
that it lost, and touches nothing else that belongs to the process it comes from. What is drawn in a worker follows from
the round and the client, or comes from the system; no generator's state is shared.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import signal
import stat
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from cloister.client.batches import Chunk
from cloister.core import Tensors
from cloister.core.state import flatten, unflatten
from cloister.errors import CloisterError, RankLost
from cloister.round import Federation, Offer, RoundPlan, Sum

Message = Callable[[RoundPlan, Chunk], tuple[Tensor, Tensor, Tensors]]
"""What the one client of a chunk sends, whether its update was finite, and what it has trained."""


def can_fork() -> bool:
    """Whether processes can be forked here: elsewhere, the system's own libraries do not stand it."""
    return sys.platform == "linux"


def total_of_workers(plan: RoundPlan, count: int, way: str, message: Message) -> Sum:
    """The sum over a plan's clients, computed by so many processes; `way` names how `message` computes."""
    owner, fed = os.getpid(), plan.fed
    key = id(fed), count, way
    with _FORKING:
        found = _KEPT.get(key)
        if found is None or found.owner != owner:  # a copy of this process has no workers of its own
            found = _KEPT[key] = Workers(plan, count, message)
            weakref.finalize(fed, _end, key, found)
    try:
        return found.total(plan)
    except BaseException:  # workers may still be busy with this round, and know nothing that others do not
        _end(key, found)
        raise


def dismiss(fed: Federation) -> None:
    """End the processes that worked for a federation, if there are any."""
    for key, workers in list(_KEPT.items()):
        if key[0] == id(fed):
            _end(key, workers)


def _end(key: tuple[int, int, str], workers: Workers) -> None:
    if _KEPT.get(key) is workers:
        del _KEPT[key]
    workers.close()


class Workers:
    """Some processes, each of which computes one client after the other."""

    def __init__(self, plan: RoundPlan, count: int, message: Message) -> None:
        self.owner, self._lock = os.getpid(), threading.Lock()
        self._w = _shared(plan.offer.w)
        blank, slots = _blank(plan), 2 * count  # a message waits in a slot for those of clients before it
        self._messages = [_shared(blank) for _ in range(slots)]
        rows = {name: table[0] for name, table in plan.client_state.items()}
        self._rows = [{name: _shared(row) for name, row in rows.items()} for _ in range(slots)]
        self._ids: dict[Connection, int] = {}
        try:
            for _ in range(count):
                ours, theirs = Pipe()
                self._ids[ours] = _fork(theirs, partial(self._serve, theirs, plan.fed, message))
                theirs.close()
        except OSError:
            self.close()
            raise

    def total(self, plan: RoundPlan) -> Sum:
        """The sum of the messages of a plan's clients, and how many of their updates were not finite."""
        with self._lock:
            return self._total(plan)

    def _total(self, plan: RoundPlan) -> Sum:
        offer, clients = plan.offer, plan.clients.tolist()
        self._w.copy_(offer.w)
        broadcast = {name: tensor.numpy() for name, tensor in flatten(offer.broadcast).items()}
        told = offer.round, broadcast, offer.noise_scale, plan.clients.numpy(), plan.cohort_size, plan.sharing
        for connection in self._ids:
            self._send(connection, told)
        idle, free, busy = list(self._ids), list(range(len(self._messages))), set[Connection]()
        done: dict[int, tuple[int, bool]] = {}
        total, nonfinite, begun, added = self._messages[0], 0, 0, 0
        while added < len(clients):
            while begun < len(clients) and idle and free:
                connection, slot = idle.pop(), free.pop(0)
                for name, row in self._rows[slot].items():
                    row.copy_(plan.client_state[name][clients[begun]])
                self._send(connection, (begun, slot))
                busy.add(connection)
                begun += 1
            for connection in [one for one in wait(busy) if isinstance(one, Connection)]:
                place, slot, finite = self._receive(connection)
                done[place] = slot, finite
                busy.remove(connection)
                idle.append(connection)
            while added in done:
                slot, finite = done.pop(added)
                total = total.add_(self._messages[slot]) if added else self._messages[slot].clone()
                nonfinite += not finite
                kept = {name: row[None] for name, row in self._rows[slot].items()}
                plan.remember(plan.clients[added : added + 1], kept)
                free = sorted([slot, *free])  # the first: those beyond may never be touched
                added += 1
        return total, torch.tensor(nonfinite)

    def _serve(self, connection: Connection, fed: Federation, message: Message) -> None:
        """What a worker does, until there is nobody left to do it for."""
        plan: RoundPlan | None = None
        while True:
            told = connection.recv()
            if len(told) > 2:
                plan = self._plan(fed, *told)
                continue
            assert plan is not None
            place, slot = told
            rows = {name: row[None].clone() for name, row in self._rows[slot].items()}
            try:
                chunk = plan.chunk(plan.clients[place : place + 1])._replace(client_state=rows)
                sent, finite, state = message(plan, chunk)
                self._messages[slot].copy_(sent)
                for name, row in self._rows[slot].items():
                    row.copy_(state[name])
                answer: tuple[Any, ...] = place, slot, bool(finite)
            except Exception as error:  # in words: not every error can be sent
                ours = isinstance(error, CloisterError)
                answer = ours, str(error) if ours else f"{type(error).__name__}: {error}"
            connection.send(answer)

    def _plan(
        self,
        fed: Federation,
        round: int,
        broadcast: dict[str, Any],
        noise_scale: float,
        clients: Any,
        cohort_size: int,
        sharing: frozenset[int],
    ) -> RoundPlan:
        told = unflatten({name: torch.from_numpy(array) for name, array in broadcast.items()})
        who = torch.from_numpy(clients)
        return RoundPlan(fed, Offer(round, who, self._w, told, noise_scale), who, cohort_size, sharing)

    def _send(self, connection: Connection, told: Any) -> None:
        try:
            connection.send(told)
        except OSError as error:
            raise self._lost(connection) from error

    def _receive(self, connection: Connection) -> tuple[int, int, bool]:
        try:
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost(connection) from error
        if len(answer) == 2:
            raise CloisterError(answer[1]) if answer[0] else RuntimeError(answer[1])
        place, slot, finite = answer
        return place, slot, finite

    def _lost(self, connection: Connection) -> RankLost:
        how = "is gone"
        with suppress(ChildProcessError):  # somebody else has waited for it
            _, status = os.waitpid(self._ids.pop(connection), 0)
            code = os.waitstatus_to_exitcode(status)
            how = f"was stopped by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return RankLost(
            f"Expected every worker process of the loop engine to answer, found that one {how}: if memory ran out, use "
            "engine = loop, which computes one client at a time; a run with a folder can be resumed."
        )

    def close(self) -> None:
        """End the processes; they keep nothing that would be lost."""
        if self.owner != os.getpid():
            return
        while self._ids:
            connection, process = self._ids.popitem()
            connection.close()
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)


_KEPT: dict[tuple[int, int, str], Workers] = {}
_FORKING = threading.Lock()


def _shared(like: Tensor) -> Tensor:
    """Memory that forked processes share: it has no name, and is gone with the last of them."""
    size = max(like.numel(), 1) * like.element_size()
    whole = torch.frombuffer(mmap.mmap(-1, size), dtype=like.dtype)
    return whole[: like.numel()].view(like.shape)


def _blank(plan: RoundPlan) -> Tensor:
    """Of the shape and type of a message."""
    fed, offer = plan.fed, plan.offer
    made, after = fed.blank(offer.w, offer.broadcast), fed.method.transform.after
    return made if after is None else after(made, fed.context(offer.w, offer.broadcast))


def _fork(connection: Connection, serve: Callable[[], None]) -> int:
    """The id of a new worker. No signal may reach it before it knows that it is one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with warnings.catch_warnings():  # that there are threads, as in any process that has computed something
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            _work(connection, serve)
        return process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, serve: Callable[[], None]) -> NoReturn:
    """The life of a worker, which never returns to where it was forked."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts a run means the process that leads it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _close_what_is_written(connection.fileno())  # locks and logs of the run are not a worker's
        torch.set_num_threads(1)
        _keep_memory()
        random.seed()
        np.random.seed()
        torch.manual_seed(int.from_bytes(os.urandom(8), "big", signed=True))  # what draws from it draws by mistake
        serve()
    except EOFError:
        status = 0
    finally:
        os._exit(status)


def _close_what_is_written(kept: int) -> None:
    """Close all files but the standard ones and those that are only read, as samples on the disk are."""
    for file in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing itself is closed by now
            writes = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
            if file > 2 and file != kept and (writes or not stat.S_ISREG(os.fstat(file).st_mode)):
                os.close(file)


def _keep_memory() -> None:
    """Have the C library keep what is freed: to return it and ask for it anew takes as long as to compute with it."""
    trim_threshold, most_mapped = -1, -4
    with suppress(AttributeError, OSError):  # another library than glibc
        system = ctypes.CDLL(None)
        system.mallopt(trim_threshold, 2**31 - 1)
        system.mallopt(most_mapped, 0)
