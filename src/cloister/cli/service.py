"""What `serve` and `join` share: logs, Ctrl-C and SIGTERM, and lines for whoever looks on."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

import typer

from cloister.cli.interrupts import INTERRUPTED
from cloister.cli.output import say

TERMINATED = 143
"""The exit status of what was ended by SIGTERM: 128 + SIGTERM."""


_TRANSPORT = "cloister.deploy.https"
"""Who logs that the server does not answer."""


class _Away(logging.Handler):
    """Shows a node's operator that the server does not answer: a loop that waits has nothing else to tell."""

    def emit(self, record: logging.LogRecord) -> None:
        say(f"{time.strftime('%H:%M:%S')}  {record.getMessage()}", err=True)


class Service:
    """A loop that runs until it is over or somebody stops it; what it does is logged, and shown on a terminal.

    The first Ctrl-C or SIGTERM asks the loop to stop where it stands; the second ends the process, which loses nothing
    either: whatever leaves is on the disk before.
    """

    def __init__(self, part: str, folder: Path, log: str | None, level: str, attached: bool) -> None:
        from cloister.deploy.operation import logs
        from cloister.deploy.operation.large_blocks import keep_large_blocks

        keep_large_blocks()
        self.stop = threading.Event()
        self.signal = signal.SIGINT
        self._part, self._shows, self._away = part, log != "-", _Away(logging.WARNING)
        file = None if log == "-" else folder / "log.jsonl" if log is None else Path(log)
        self._log = logs.log_events(part)
        self._handler = logs.start_logs(file, level)
        self._attached = attached
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if self._attached:
            from cloister.deploy.operation.processes import end_with_parent

            end_with_parent()
        for one in (signal.SIGINT, signal.SIGTERM):
            self._before[one] = signal.signal(one, self._asked)
        if self._part == "node" and self._shows:
            logging.getLogger(_TRANSPORT).addHandler(self._away)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one, before in self._before.items():
            signal.signal(one, before)
        from cloister.deploy.operation.logs import stop_logs

        logging.getLogger(_TRANSPORT).removeHandler(self._away)
        stop_logs(self._handler)

    def _asked(self, number: int, frame: object) -> None:
        if self.stop.is_set():
            os._exit(128 + number)
        self.signal = signal.Signals(number)
        self.stop.set()
        if number == signal.SIGINT:  # by the system's own call: the loop may be in the middle of a line
            os.write(2, b"\nstopping; Ctrl-C again ends at once, and loses nothing either\n")

    def tell(self, event: Mapping[str, Any]) -> None:
        """Something happened in the loop: log it, and show it."""
        from cloister.deploy.operation.logs import sentence

        self._log(event)
        if self._shows and event.get("level", "info") != "debug":
            say(f"{time.strftime('%H:%M:%S')}  {sentence(event)}", err=True)

    def leave(self, continued: str) -> NoReturn:
        """End with the status that belongs to the signal, and say how to go on."""
        say(f"interrupted; {continued}", err=True)
        sys.stderr.flush()
        raise typer.Exit(INTERRUPTED if self.signal == signal.SIGINT else TERMINATED)
