"""Processes that end with the one that started them, however it ends.

Each has its standard input connected to a pipe that its parent holds open. When the parent is gone, killed or not, the
system closes the pipe, and `end_with_parent` in the child ends it: whatever a server or a node was about to do, its
files say how to go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS_TO_END = 2.0
"""How long all of them together are waited for; then they are killed, which loses nothing."""


@dataclass
class Child:
    """A process, and the file that has what it said."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.process.poll()

    def last_words(self) -> str:
        """The error it ended with, else the last line it said."""
        lines = [line for line in self.output.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        return (errors or lines or ["it said nothing"])[-1]


class Children:
    """Processes of `cloister`; all of them are gone when the block ends."""

    def __init__(self) -> None:
        self.all: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def start(self, name: str, words: Sequence[str], output: Path) -> Child:
        """Start `cloister WORDS`, in a group of its own: Ctrl-C on a terminal is for the parent alone."""
        output.parent.mkdir(parents=True, exist_ok=True)
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "cloister", *words],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment,
            )
        child = Child(name, process, output)
        self.all.append(child)
        return child

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self.all:
            if child.status is None:
                child.process.terminate()
        until = time.monotonic() + SECONDS_TO_END
        for child in self.all:
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            if child.process.stdin is not None:
                child.process.stdin.close()


def end_with_parent() -> None:
    """End this process when the one that started it is gone."""

    def watch() -> None:
        try:
            while os.read(0, 1024):
                pass
        except OSError:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
