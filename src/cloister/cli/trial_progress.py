"""What a trial shows while it runs: a bar on a terminal, a line for every round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from cloister.cli.output import say

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from cloister.deploy.operation.status import Status


class TrialProgress:
    """Rounds of a federation as they end; on stderr, since the certificates are the output."""

    def __init__(self, names: Sequence[str]) -> None:
        self.nodes = len(names)
        self.said = ""
        self.bar: Progress | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[more]}"))
            self.bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True))
            self.bar.start()
            self.task = self.bar.add_task("processes are starting", total=None, more="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def show(self, status: Status | None) -> None:
        """Where the federation stands, as far as anybody knows."""
        if status is None:
            return
        if self.bar is not None and self.task is not None:
            waiting = status.phase == "waiting"
            self.bar.update(
                self.task,
                description=_described(status),
                total=None if waiting else status.rounds,
                completed=0 if waiting else _ended(status),
                more=_nodes(status),
            )
            return
        line = f"{_described(status)}, {_nodes(status)}"
        if line != self.said:
            self.said = line
            say(line, err=True)


def _ended(status: Status) -> int:
    """Rounds that are over."""
    last = status.history[0] if status.history else None
    still_open = last is not None and last.state == "open" and last.what == "update"
    return status.round - 1 if still_open else status.round


def _described(status: Status) -> str:
    if status.phase == "waiting":
        return "waiting for nodes"
    return f"round {_ended(status)} of {status.rounds}" + (" (done)" if status.phase == "finished" else "")


def _nodes(status: Status) -> str:
    agreed = sum(one.state in ("accepted", "done") for one in status.nodes)
    refused = sum(one.state == "refused" for one in status.nodes)
    text = f"{agreed} of {len(status.nodes)} nodes take part"
    return f"{text}, {refused} refused" if refused else text
