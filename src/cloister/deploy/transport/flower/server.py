"""The server's end over Flower: it keeps questions open at every node and collects the answers."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.flower.exchange import Route, open_batch, seal_batch
from cloister.deploy.transport.flower.line import Line
from cloister.deploy.transport.flower.run import start_run
from cloister.deploy.transport.flower.runtime import Arrival, Runtime, TaskLost
from cloister.deploy.transport.flower.settings import FlowerAddress
from cloister.deploy.wire.identity import SERVER, PrivateKey, Register
from cloister.deploy.wire.refused import Refused, accept_if

_log = logging.getLogger(__name__)

_STEP, _QUIET_STEP = 0.1, 0.5
_NODES_EVERY, _ALL_NODES_EVERY, _HEARTBEAT_EVERY = 1.0, 10.0, 10.0
_LEAST_HOLD, _MOST_HOLD, _HOLD_SHARE = 0.3, 5.0, 0.25
"""A node with nothing to say keeps a question for a quarter of the time since the last message: a SuperNode looks for
an answer every half second, so less than 0.3 s wins nothing."""
_QUIET_AFTER = 30.0
_MOST_THREADS = 8
_LEAVE_SECONDS = 5.0
_LOST_AFTER = 90.0
"""Seconds without an answer after which a question is asked anew: Flower gives up a dead executor after 60."""
_STRANGER_EVERY = 5.0


@dataclass
class _Node:
    """A SuperNode, and who answers there."""

    name: str = ""
    open: dict[str, tuple[str, float]] = field(default_factory=dict)  # question: its digest, when it was asked
    not_before: float = 0.0


class FlowerServer:
    """The server's end. One thread talks to the SuperLink; the others leave and find messages here.

    A SuperNode that finds no question waits for three seconds, so two are open at a time while messages flow.
    """

    def __init__(self, address: FlowerAddress, register: Register, key: PrivateKey, patience: float = 30.0) -> None:
        self._address, self._register, self._key, self._patience = address, register, key, patience
        self._runtime = Runtime(address, "flwr-serverapp")
        self._lock = threading.Lock()
        self._lines = {name: Line() for name in register.names}
        self._nodes: dict[int, _Node] = {}
        self._inbox: queue.Queue[bytes | None] = queue.Queue()
        self._seen: dict[str, float] = {}
        self._wake, self._closed = threading.Event(), threading.Event()
        self._last_message = time.monotonic()
        self._next_nodes = self._next_heartbeat = 0.0
        self._pool = ThreadPoolExecutor(min(_MOST_THREADS, len(register.names)), "flower server")
        start_run(address, self._runtime, patience)
        self._thread = threading.Thread(target=self._work, name="flower server", daemon=True)
        self._thread.start()

    def send(self, node: str, data: bytes) -> None:
        """Queue a message for a node."""
        self._register.key_of(node)
        with self._lock:
            self._lines[node].put(data)
        self._stir()

    def receive(self, timeout: float) -> bytes | None:
        """The next message of any node."""
        if self._closed.is_set():
            return None
        try:
            return self._inbox.get(timeout=timeout) if timeout > 0 else self._inbox.get_nowait()
        except queue.Empty:
            return None

    def clear(self, node: str) -> None:
        """Forget what is queued for a node; what is on its way arrives."""
        with self._lock:
            self._lines[node].clear()

    def seen(self) -> Mapping[str, float]:
        """When each node was last heard of."""
        with self._lock:
            return dict(self._seen)

    def close(self) -> None:
        """Stop, and end the run of Flower."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._wake.set()
        self._inbox.put(None)
        self._thread.join(timeout=30)
        self._pool.shutdown()
        self._runtime.close()

    def _stir(self) -> None:
        self._last_message = time.monotonic()
        self._wake.set()

    @property
    def _quiet(self) -> bool:
        return time.monotonic() - self._last_message > _QUIET_AFTER

    @property
    def _hold(self) -> float:
        return min(_MOST_HOLD, max(_LEAST_HOLD, _HOLD_SHARE * (time.monotonic() - self._last_message)))

    def _work(self) -> None:
        pause = _STEP
        while not self._closed.is_set():
            try:
                self._turn()
                pause = _QUIET_STEP if self._quiet else _STEP
            except TaskLost as error:
                _log.warning("the run of Flower is gone, another is started: %s", error)
                pause = self._start_again()
            except Unreachable as error:
                _log.warning("%s", error)
                pause = min(5.0, 2 * max(pause, 0.25))
            except Exception:  # Flower's insides may fail in their own ways; the nodes still wait for us
                _log.exception("a turn over Flower failed")
                pause = 5.0
            self._wake.wait(pause)
            self._wake.clear()
        self._leave()

    def _leave(self) -> None:
        """Take the answers to what was asked, for a while, so that no SuperNode is left with half a message."""
        until = time.monotonic() + _LEAVE_SECONDS
        try:
            while any(node.name and node.open for node in self._nodes.values()) and time.monotonic() < until:
                self._collect()
                time.sleep(_STEP)
            self._runtime.finish()
        except Unreachable as error:
            _log.warning("the run of Flower was not ended: %s", error)

    def _start_again(self) -> float:
        """A new run after the SuperLink was restarted; what was on its way is sent again."""
        with self._lock:
            self._nodes.clear()
            for line in self._lines.values():
                line.again()
        try:
            start_run(self._address, self._runtime, self._patience)
        except Unreachable as error:
            _log.warning("%s", error)
            return 2.0
        return 0.0

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._runtime.heartbeat()
            self._next_heartbeat = now + _HEARTBEAT_EVERY
        if now >= self._next_nodes:
            present = self._runtime.nodes()
            self._nodes = {one: self._nodes.get(one, _Node()) for one in present}
            complete = {node.name for node in self._nodes.values()} >= set(self._register.names)
            self._next_nodes = now + (_ALL_NODES_EVERY if complete else _NODES_EVERY)
        self._collect()

    def _collect(self) -> None:
        questions = [question for node in self._nodes.values() for question in node.open]
        came: dict[str, Arrival] = {}
        if questions:
            came = {one.question: one for one in self._runtime.answers(questions)}
        nodes = self._nodes
        list(self._pool.map(lambda number: self._serve(number, nodes[number], came), list(nodes)))

    def _serve(self, number: int, node: _Node, came: Mapping[str, Arrival]) -> None:
        """Take the answers of one node, and keep its questions open."""
        for question in [one for one in node.open if one in came]:
            digest, _ = node.open.pop(question)
            data, failure = self._runtime.contents(came[question])
            try:
                self._accept(number, node, data, failure, digest)
            except Refused as error:
                _log.warning("node %d of Flower: %s", number, error)
                self._mistrust(node)
        while not self._closed.is_set() and self._wants_question(node, time.monotonic()):
            self._ask(number, node)

    def _wants_question(self, node: _Node, now: float) -> bool:
        lost = [question for question, (_, asked) in node.open.items() if now - asked > _LOST_AFTER]
        for question in lost:
            del node.open[question]
            if node.name:
                with self._lock:
                    self._lines[node.name].again()
        if now < node.not_before:
            return False
        return len(node.open) < (1 if self._quiet or not node.name else 2)

    def _ask(self, number: int, node: _Node) -> None:
        route = Route(self._runtime.route.run, number)
        with self._lock:
            line = self._lines[node.name] if node.name else Line()
            batch = line.batch(route, SERVER, node.name, hold=self._hold)
        data, digest = seal_batch(batch, self._key)
        node.open[self._runtime.ask(number, data)] = (digest, time.monotonic())

    def _mistrust(self, node: _Node) -> None:
        if node.name:
            with self._lock:
                self._lines[node.name].again()
        node.name, node.not_before = "", time.monotonic() + _STRANGER_EVERY

    def _accept(self, number: int, node: _Node, data: bytes | None, failure: str, digest: str) -> None:
        accept_if(data is not None, "an answer of Cloister's executor", failure, "start `cloister join`")
        route = Route(self._runtime.route.run, number)
        batch = open_batch(data or b"", route, self._register.key_of).batch
        accept_if(batch.sender != SERVER, "an answer of a node", batch.sender, "use the node's own key")
        accept_if(batch.answers == digest, "the answer to our question", "another", "it was sent before")
        with self._lock:
            for other in self._nodes.values():
                if other.name == batch.sender:
                    other.name = ""
            node.name = batch.sender
            self._seen[batch.sender] = time.time()
            new = self._lines[batch.sender].accept(batch)
        for message in new:
            self._inbox.put(message)
        if new:
            self._stir()
