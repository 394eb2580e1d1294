"""The server: on 127.0.0.1 and nowhere else, until Ctrl-C."""

from __future__ import annotations

import signal
import socket
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import uvicorn

from cloister.errors import CloisterError, expect, expect_package
from cloister.studio.access import Access, App
from cloister.studio.app import Studio, app_of

HOST = "127.0.0.1"


def serve(folder: Path, port: int | None = None, browser: bool = True, tell: Callable[[str], None] = print) -> None:
    """Show the runs in a folder until somebody interrupts; `tell` gets the address."""
    expect_package("plotly", "for the studio's figures", "studio")
    expect(port is None or 0 < port < 65536, "a port between 1 and 65535", port, "leave it out for a free one")
    listener = _listen(port or 0)
    studio = Studio(folder.resolve())
    number = listener.getsockname()[1]
    access = Access(cast("App", app_of(studio)), number)
    address = f"http://{HOST}:{number}/?token="
    server = _Server(studio, access, (lambda: webbrowser.open(address + access.one_time_token())) if browser else None)
    tell(f"{address}{access.token}")
    with listener:
        server.run([listener])


class _Server(uvicorn.Server):
    """uvicorn, which ends at the first Ctrl-C, with status 0, also where pages follow runs."""

    def __init__(self, studio: Studio, access: Access, started: Callable[[], object] | None) -> None:
        super().__init__(
            uvicorn.Config(
                cast("Callable[..., object]", access),
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        self._studio, self._on_start = studio, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the browser once there is something to open, and beside the server: some wait until it is closed."""
        await super().startup(sockets)
        if self._on_start is not None and self.started:
            threading.Thread(target=self._on_start, daemon=True).start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would raise the signal again after its end."""

        def leave(*_: object) -> None:
            self._studio.stopping = self.should_exit = True

        before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise CloisterError(f"Expected to listen on {HOST}:{port}, found {error}: choose another --port.") from None
