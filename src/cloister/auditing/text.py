"""Audits on the screen: a table of both bounds, and a line while it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloister.auditing.found import Audit
from cloister.runs.progress_line import Part, ProgressLine
from cloister.runs.report.style import new_table

if TYPE_CHECKING:
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
    """A line that is told what is done, and how much of it."""
    with _Steps(show) as shown:
        yield shown.tell


class _Steps(ProgressLine):
    """What an audit does, one thing after the other."""

    def __init__(self, show: bool | None) -> None:
        super().__init__(show, 1, unit="step")
        self._what = ""

    def tell(self, what: str, done: int, of: int) -> None:
        if what != self._what:
            self._what = what
            self.restart(of)
        count = Part(f"{done:,} of {of:,}", f"{done}/{of}", weight=8)
        self.update(done, [Part(what, style="bold", weight=9), count])
