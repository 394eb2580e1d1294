"""The line over the cells of a study: how many have ended, how many failed, where the present one is, the time left."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cloister.runs.progress import epsilon_part, metric_part, round_parts
from cloister.runs.progress_line import Part, ProgressLine
from cloister.studies.cells import Cell


class CellProgress(ProgressLine):
    """The line over many runs. It advances by rounds, so that it moves within long ones, too."""

    def __init__(self, show: bool | None, cells: Sequence[Cell], done: Collection[str], jobs: int, **more: Any) -> None:
        self._rounds = {cell.folder: _rounds_of(cell) for cell in cells if cell.folder not in done}
        self._done = dict.fromkeys(self._rounds, 0)
        self._cells, self._ended, self._failed, self._jobs = len(cells), len(done), 0, jobs
        self._metric: dict[str, Part] = {}
        super().__init__(show, sum(self._rounds.values()), **more)
        self.update(0, [self._counts()])

    def at(self, cell: Cell, line: Mapping[str, Any]) -> None:
        """A round of a cell is done; `line` has its number, epsilon, and metrics where it was tested."""
        self._done[cell.folder] = min(line["round"], self._rounds[cell.folder])
        self._metric[cell.folder] = metric_part(line) or self._metric.get(cell.folder, Part(""))
        self._show(self._of_run(cell, line) if self._jobs == 1 else [])

    def ended(self, cell: Cell, failed: bool) -> None:
        """A cell has ended."""
        self._done[cell.folder] = self._rounds[cell.folder]
        self._failed += failed
        self._ended += not failed
        self._show([])

    def _show(self, more: Sequence[Part]) -> None:
        if self.shown:
            self.update(sum(self._done.values()), [self._counts(), *more])

    def _of_run(self, cell: Cell, line: Mapping[str, Any]) -> list[Part]:
        """Of the one that is run now; of several at a time they would take turns."""
        asked: Any = cell.experiment.values.get("epsilon")
        return [
            Part(cell.folder, style="bold", weight=2),
            *round_parts(line["round"], self._rounds[cell.folder]),
            self._metric[cell.folder],
            epsilon_part(line["epsilon"], asked),
        ]

    def _counts(self) -> Part:
        failed = f", {self._failed} failed" if self._failed else ""
        several = f", {self._jobs} at a time" if self._jobs > 1 else ""
        count = f"{self._ended}/{self._cells} runs{failed}"
        return Part(count + several, count if several else f"{self._ended}/{self._cells}", weight=10)


def _rounds_of(cell: Cell) -> int:
    rounds = cell.experiment.values.get("rounds", 1)
    return rounds if isinstance(rounds, int) else 1
