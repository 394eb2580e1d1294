"""Audits on the screen: a table of both bounds, and a bar while it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloister.auditing.found import Audit
from cloister.runs.progress import Bar
from cloister.runs.report.style import new_table

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.table import Table

    from cloister.auditing.audits import Progress


def bounds_table(audits: Sequence[Audit]) -> Table:
    """A row for every lower bound."""
    table = new_table("method", "audit", "at least", "confidence", "certified", "right guesses", "seconds")
    for audit in audits:
        for bound in audit.bounds:
            above = bound.confidence is not None and bound.epsilon > audit.certified
            sure = "estimate" if bound.confidence is None else f"{bound.confidence:g}"
            table.add_row(
                audit.label or audit.method,
                bound.kind,
                f"{bound.epsilon:.3f}{'!' if above else ''}",
                sure,
                f"{audit.certified:.3f}",
                f"{bound.right}/{bound.guesses}",
                f"{bound.seconds:.1f}",
            )
    return table


@contextmanager
def bar(show: bool | None) -> Iterator[Progress]:
    """A bar that is told what is done, and how much of it."""
    shown = _Bar(show)
    with shown:
        yield shown.tell


class _Bar(Bar):
    def __init__(self, show: bool | None) -> None:
        super().__init__(show, _rich)
        self._tasks: dict[str, Any] = {}

    def tell(self, what: str, done: int, of: int) -> None:
        if self._bar is None:
            return
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=of)
        self._bar.update(self._tasks[what], completed=done, total=of)


def _rich() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return RichProgress(*columns, console=Console(stderr=True), transient=True)
