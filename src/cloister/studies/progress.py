"""The bar over the cells of a study: how many have ended, how many failed, and the time that is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from cloister.runs.progress import Bar
from cloister.studies.cells import Cell

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class CellProgress(Bar):
    """The bar over many runs. It advances by rounds, so that it moves within long ones, too."""

    def __init__(self, show: bool | None, cells: Sequence[Cell], done: Collection[str], jobs: int) -> None:
        self._rounds = {cell.folder: _rounds_of(cell) for cell in cells if cell.folder not in done}
        self._done = dict.fromkeys(self._rounds, 0)
        self._total, self._ended, self._failed, self._jobs = len(cells), len(done), 0, jobs
        super().__init__(show, _bar)
        if self._bar is not None:
            self._task = self._bar.add_task("cells", total=sum(self._rounds.values()), said=self._said())

    def at(self, cell: Cell, rounds: int) -> None:
        """So many rounds of a cell are done."""
        self._done[cell.folder] = min(rounds, self._rounds[cell.folder])
        self._show()

    def ended(self, cell: Cell, failed: bool) -> None:
        """A cell has ended."""
        self._done[cell.folder] = self._rounds[cell.folder]
        self._failed += failed
        self._ended += not failed
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=sum(self._done.values()), said=self._said())

    def _said(self) -> str:
        failed = f", {self._failed} failed" if self._failed else ""
        several = f", {self._jobs} at a time" if self._jobs > 1 else ""
        return f"{self._ended}/{self._total} runs{failed}{several}"


def _rounds_of(cell: Cell) -> int:
    rounds = cell.experiment.values.get("rounds", 1)
    return rounds if isinstance(rounds, int) else 1


def _bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    one_line = Column(no_wrap=True)
    return RichProgress(
        TextColumn("{task.fields[said]}", table_column=one_line),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=one_line),
        console=Console(stderr=True),
        expand=True,
    )
