"""The server's end: uvicorn in a thread of its own, with its own acceptance of connections."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

import uvicorn
from fastapi import FastAPI

from cloister.deploy.transport.https.arrivals import Arrivals
from cloister.deploy.transport.https.connections import Connection, Connections, GuardedProtocol, accept_forever
from cloister.deploy.transport.https.guard import Guard
from cloister.deploy.transport.https.limits import HttpsLimits, TlsFiles
from cloister.deploy.transport.https.mailboxes import Mailboxes
from cloister.deploy.transport.https.refusals import RefusalLog
from cloister.deploy.transport.https.routes import Routes
from cloister.deploy.transport.https.sessions import Sessions
from cloister.deploy.wire.identity import Register
from cloister.errors import CloisterError, expect

_SHUTDOWN_STEPS = 25


class HttpsServer:
    """A `ServerTransport` over HTTPS; it listens when it is made. Port 0 takes a free one."""

    def __init__(
        self,
        register: Register,
        host: str,
        port: int,
        tls: TlsFiles,
        limits: HttpsLimits | None = None,
        extra_routes: Callable[[FastAPI], None] | None = None,
    ) -> None:
        self._register, self._limits = register, limits or HttpsLimits()
        context = tls.context()
        self._listener = _listen(host, port)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self.refusals = RefusalLog()
        self._loop = asyncio.new_event_loop()
        self._mailboxes, self._arrivals = Mailboxes(self._loop), Arrivals(self._limits)
        connections = Connections(self._limits, self.refusals)
        self._routes = Routes(Sessions(register), self._arrivals, self._mailboxes, connections, self._limits)
        app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self._routes.add_to(app)
        if extra_routes is not None:
            extra_routes(app)
        guarded = Guard(app, self._limits, connections)
        self._uvicorn = _Uvicorn(guarded, self._limits, self._listener, context, connections)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cloister-https", daemon=True)
        self._thread.start()
        self._uvicorn.ready.wait()

    @property
    def url(self) -> str:
        """Where nodes find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"https://{host}:{self.port}"

    def send(self, node: str, data: bytes) -> None:
        """Queue a message for a node."""
        self._register.key_of(node)
        expect(
            len(data) <= self._limits.message_bytes,
            f"a message of at most {self._limits.message_bytes} bytes",
            len(data),
            "raise HttpsLimits.message_bytes (for_model gives what a model needs)",
        )
        if not self._closed:
            self._mailboxes.put(node, data)

    def receive(self, timeout: float) -> bytes | None:
        """The next message of any node."""
        return None if self._closed else self._arrivals.receive(timeout)

    def clear(self, node: str) -> None:
        """Forget what is queued for a node."""
        self._mailboxes.clear(node)

    def seen(self) -> Mapping[str, float]:
        """When each node was last heard of."""
        return dict(self._routes.seen)

    def close(self) -> None:
        """Stop; returns when the port is free again."""
        if self._closed:
            return
        self._closed = True
        self._arrivals.close()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._mailboxes.close)
        self._uvicorn.should_exit = True
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._uvicorn.serve())
        finally:
            self._uvicorn.ready.set()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


class _Uvicorn(uvicorn.Server):
    """uvicorn, but for how connections are accepted: it has no time limit for a handshake or for headers."""

    def __init__(
        self, app: Guard, limits: HttpsLimits, listener: socket.socket, tls: ssl.SSLContext, connections: Connections
    ) -> None:
        super().__init__(
            uvicorn.Config(
                cast("Callable[..., object]", app),
                http=GuardedProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_keep_alive=int(limits.idle_seconds) or 1,
                timeout_graceful_shutdown=1,
            )
        )
        self.ready = threading.Event()
        self.servers = []
        self._listener, self._tls, self._connections = listener, tls, connections
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""

        def protocol(connection: Connection) -> GuardedProtocol:
            return GuardedProtocol(self, connection, self._connections)

        accepting = accept_forever(self._listener, self._tls, self._connections, protocol)
        self._accepting = asyncio.get_running_loop().create_task(accepting)
        self.started = True
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what is there."""
        if self._accepting is not None:
            self._accepting.cancel()
        self._listener.close()
        for _ in range(_SHUTDOWN_STEPS):  # responses that are on their way may arrive; idle connections would not end
            if not self.server_state.tasks:
                break
            await asyncio.sleep(0.02)
        self._connections.abort_all()
        await super().shutdown(sockets)


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket."""
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=512
        )
    except OSError as error:
        raise CloisterError(f"Expected to listen on {host}:{port}, found {error}: choose another port.") from None
    listener.setblocking(False)
    return listener
