"""Connections: how many there are, whose they are, and how long they may take for a TLS handshake or for headers.

A connection is a stranger's until a signed request came over it. When strangers are too many, the oldest one of the
address that has most of them is closed for the new one: nodes that are at work lose nothing, and a new node needs but
a moment to prove its key.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from cloister.deploy.transport.https.limits import HttpsLimits
from cloister.deploy.transport.https.refusals import LOG, Refusal, RefusalLog

if TYPE_CHECKING:
    from uvicorn import Server

Address = tuple[str, int]


class Connection:
    """One connection, from its acceptance to its end."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.node: str | None = None
        self.accepted: socket.socket | None = None  # until asyncio has it
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    @property
    def who(self) -> str:
        """Whose it is, for the log."""
        return self.address[0] if self.node is None else f"{self.node} ({self.address[0]})"

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()
            return
        if self.task is not None:
            self.task.cancel()
        if self.accepted is not None:
            self.accepted.close()


class Connections:
    """All connections of a server; called by its event loop alone."""

    def __init__(self, limits: HttpsLimits, refused: RefusalLog) -> None:
        self.limits, self.refused = limits, refused
        self._open: dict[Address, Connection] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, address: Address) -> Connection | None:
        """A new connection, for which the oldest stranger may have to go; None when there is no place."""
        strangers = [one for one in self._open.values() if one.node is None]
        full = len(self._open) >= self.limits.connections
        if full and not strangers:
            self.refused(address[0], f"Expected at most {self.limits.connections} connections, found one more.")
            return None
        if full or len(strangers) >= self.limits.strangers:
            most = self.limits.connections if full else self.limits.strangers
            self._make_room(strangers, f"Expected at most {most} connections before a key is proved, found one more.")
        connection = self._open[address] = Connection(address)
        return connection

    def _make_room(self, strangers: list[Connection], sentence: str) -> None:
        """End the oldest connection of the address that has most of them."""
        counts = Counter(one.address[0] for one in strangers)
        oldest = max(strangers, key=lambda one: counts[one.address[0]])
        self.refused(oldest.who, sentence)
        self.end(oldest)
        oldest.abort()

    def end(self, connection: Connection) -> None:
        """A connection is over."""
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]

    def of(self, address: object) -> Connection | None:
        """The connection from an address."""
        return self._open.get((str(address[0]), int(address[1]))) if isinstance(address, (tuple, list)) else None

    def abort_all(self) -> None:
        """End all of them."""
        for connection in list(self._open.values()):
            connection.abort()

    def prove(self, address: object, node: str) -> None:
        """A signed request of a node came over a connection."""
        connection = self.of(address)
        if connection is None or connection.node == node:
            return
        most = self.limits.node_connections
        if sum(one.node == node for one in self._open.values()) >= most:
            raise Refusal(429, f"Expected at most {most} connections of {node}, found one more: close others.")
        connection.node = node


class GuardedProtocol(H11Protocol):
    """HTTP over one connection, with an end to the time that headers may take."""

    def __init__(self, server: Server, connection: Connection, connections: Connections) -> None:
        super().__init__(config=server.config, server_state=server.server_state, app_state={})
        self._connection, self._connections = connection, connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake is done."""
        assert isinstance(transport, asyncio.Transport)
        self._connection.transport = transport
        super().connection_made(transport)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._unwatch()
        self._connections.end(self._connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes: while they are no whole headers, time runs."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._watch_headers()
        elif self.conn.their_state is not h11.IDLE:
            self._unwatch()

    def on_response_complete(self) -> None:
        """A part of the next request may be here already."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._watch_headers()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or has too long headers."""
        self._connections.refused(self._connection.who, "Expected an HTTP request of moderate size, found another.")
        super().send_400_response(msg)

    def _watch_headers(self) -> None:
        if self._deadline is None:
            seconds = self._connections.limits.header_seconds
            self._deadline = self.loop.call_later(seconds, self._too_slow)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        seconds = self._connections.limits.header_seconds
        self._connections.refused(self._connection.who, f"Expected headers within {seconds:g} s, found a part of them.")
        self._connection.abort()


async def accept_forever(
    listener: socket.socket,
    tls: ssl.SSLContext,
    connections: Connections,
    protocol: Callable[[Connection], asyncio.Protocol],
) -> None:
    """Accept connections, each with its handshake in a task of its own."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    while True:
        try:
            accepted, address = await loop.sock_accept(listener)
        except OSError as error:
            LOG.error("Expected to accept a connection, found %s: raise the limit of open files.", error)
            await asyncio.sleep(0.1)
            continue
        connection = connections.admit((str(address[0]), int(address[1])))
        if connection is None:
            accepted.close()
            continue
        task = loop.create_task(_handshake(accepted, tls, connection, connections, protocol))
        connection.accepted, connection.task = accepted, task
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def _handshake(
    accepted: socket.socket,
    tls: ssl.SSLContext,
    connection: Connection,
    connections: Connections,
    protocol: Callable[[Connection], asyncio.Protocol],
) -> None:
    """TLS, within its time; a connection that ends here never was one."""
    loop = asyncio.get_running_loop()
    seconds = connections.limits.header_seconds
    connection.accepted = None
    try:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.connect_accepted_socket(
            lambda: protocol(connection), accepted, ssl=tls, ssl_handshake_timeout=seconds, ssl_shutdown_timeout=seconds
        )
    except (OSError, TimeoutError):
        connections.end(connection)
        connections.refused(connection.who, f"Expected a TLS handshake within {seconds:g} s, found none.")
