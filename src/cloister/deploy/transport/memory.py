"""A transport within one process: queues, and hooks that lose, repeat, delay, reorder and change messages.

network = MemoryNetwork(register, faults=Faults(seed=0, lose=0.1, repeat=0.1))
server, node = network.server(), network.node("cleveland")
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.wire.identity import SERVER, Register


@dataclass(frozen=True)
class Delivery:
    """Bytes that arrive so many seconds after they were sent, before that many messages that were there already."""

    data: bytes
    delay: float = 0.0
    overtakes: int = 0


Hook = Callable[[str, str, bytes], Sequence[Delivery]]
"""What becomes of a message, given its sender, its recipient and its bytes: none, one or more deliveries."""


class Faults:
    """A hook that does to each message, with given probabilities, what networks do; the same seed does the same."""

    def __init__(
        self,
        seed: int = 0,
        *,
        lose: float = 0.0,
        repeat: float = 0.0,
        change: float = 0.0,
        reorder: float = 0.0,
        delay: float = 0.0,
    ) -> None:
        self._random = random.Random(seed)
        self._lose, self._repeat, self._change, self._reorder = lose, repeat, change, reorder
        self._delay = delay  # the longest, in seconds

    def __call__(self, sender: str, recipient: str, data: bytes) -> Sequence[Delivery]:
        draw = self._random.random
        if draw() < self._lose:
            return []
        copies = 2 if draw() < self._repeat else 1
        return [self._delivery(data) for _ in range(copies)]

    def _delivery(self, data: bytes) -> Delivery:
        draw = self._random.random
        if data and draw() < self._change:
            at = self._random.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ (1 << self._random.randrange(8))]) + data[at + 1 :]
        overtakes = self._random.randrange(1, 10) if draw() < self._reorder else 0
        return Delivery(data, self._delay * draw(), overtakes)


class MemoryNetwork:
    """A server and its nodes in one process."""

    def __init__(self, register: Register, faults: Hook | None = None) -> None:
        self.register = register
        self.faults = faults
        self._changed = threading.Condition()
        self._queues: dict[str, list[tuple[float, bytes]]] = defaultdict(list)
        self._seen: dict[str, float] = {}
        self._server: MemoryServer | None = None

    def server(self) -> MemoryServer:
        """The server's end; a new one takes the place of the last, whose queues are lost with it."""
        with self._changed:
            self._queues.clear()
            self._seen.clear()
            self._server = MemoryServer(self)
            self._changed.notify_all()
            return self._server

    def node(self, name: str) -> MemoryNode:
        """A node's end."""
        self.register.key_of(name)
        return MemoryNode(self, name)

    def is_server(self, server: MemoryServer) -> bool:
        """Whether this is the server that is there now."""
        return self._server is server

    def leave(self, server: MemoryServer) -> None:
        """A server ends."""
        with self._changed:
            if self._server is server:
                self._server = None
                self._queues.clear()
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look again."""
        with self._changed:
            self._changed.notify_all()

    def put(self, sender: str, recipient: str, data: bytes) -> None:
        """A message goes on its way."""
        with self._changed:
            if self._server is None:
                raise Unreachable("Expected a server, found none: send the message again when it is back.")
            deliveries = [Delivery(data)] if self.faults is None else self.faults(sender, recipient, data)
            queue = self._queues[recipient]
            for one in deliveries:
                queue.insert(max(0, len(queue) - one.overtakes), (time.monotonic() + one.delay, one.data))
            self._changed.notify_all()

    def take(self, recipient: str, timeout: float, is_open: Callable[[], bool]) -> bytes | None:
        """The first message that has arrived."""
        until = time.monotonic() + timeout
        with self._changed:
            while True:
                self.heard(recipient)
                now, queue = time.monotonic(), self._queues[recipient]
                for at, (ready, data) in enumerate(queue):
                    if ready <= now:
                        del queue[at]
                        return data
                if now >= until or not is_open():
                    return None
                self._changed.wait(min([until, *(ready for ready, _ in queue)]) - now)

    def forget(self, node: str) -> None:
        """Drop what is on its way to a node."""
        with self._changed:
            self._queues[node].clear()

    def heard(self, name: str) -> None:
        """A node was heard of."""
        if name != SERVER and self._server is not None:
            self._seen[name] = time.time()

    def last_heard(self) -> dict[str, float]:
        """When each node was last heard of."""
        with self._changed:
            return dict(self._seen)


class MemoryServer:
    """The server's end of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network

    def send(self, node: str, data: bytes) -> None:
        """Queue a message for a node."""
        self._network.register.key_of(node)
        if self._is_open():
            self._network.put(SERVER, node, data)

    def receive(self, timeout: float) -> bytes | None:
        """The next message of any node."""
        return self._network.take(SERVER, timeout, self._is_open) if self._is_open() else None

    def clear(self, node: str) -> None:
        """Forget what is queued for a node."""
        self._network.forget(node)

    def seen(self) -> Mapping[str, float]:
        """When each node was last heard of."""
        return self._network.last_heard()

    def close(self) -> None:
        """Stop."""
        self._network.leave(self)

    def _is_open(self) -> bool:
        return self._network.is_server(self)


class MemoryNode:
    """A node's end of a `MemoryNetwork`."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        self._network, self._name, self._open = network, name, True

    def send(self, data: bytes) -> None:
        """Give a message to the server."""
        if not self._open:
            raise Unreachable("Expected an open transport, found a closed one: make a new one.")
        self._network.put(self._name, SERVER, data)
        self._network.heard(self._name)

    def receive(self, timeout: float) -> bytes | None:
        """The next message of the server."""
        return self._network.take(self._name, timeout, lambda: self._open) if self._open else None

    def close(self) -> None:
        """Stop."""
        self._open = False
        self._network.wake()
