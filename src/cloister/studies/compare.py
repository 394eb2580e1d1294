"""A comparison: its cells, what came of them, and what that tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cloister.errors import expect
from cloister.runs.files import write_atomically
from cloister.runs.report.comparison import Compared, compared, series_name
from cloister.studies import tables
from cloister.studies.cells import Cell
from cloister.studies.execution import CellsFailed, run_cells
from cloister.studies.planning import Source, planned
from cloister.studies.plots import comparison_plot
from cloister.studies.results import FILE, write_results
from cloister.studies.rows import Group, Row, alike, ranked, rows_of
from cloister.studies.settings import differing
from cloister.studies.statistics import CONFIDENCE, Difference, paired

if TYPE_CHECKING:
    import pandas

Jobs = int | Literal["auto"]


def compare(
    source: Source,
    /,
    folder: str | Path,
    *,
    jobs: Jobs = "auto",
    threads: int = 1,
    progress: bool | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Comparison:
    """Run every cell of a comparison, or what is left of it, and say what came of it.

        found = cl.compare("experiments/digits-methods.toml", "runs/methods", seed=[0, 1, 2, 3, 4])
        print(found.table("latex"))
        found.paired("dp_fedsam", "dp_fedavg", epsilon=8.0).verdict

    Args:
        source: a file, as `cloister compare` takes it, or a mapping with what one would hold: the keys of a run, or
            epsilons, shared and methods.
        folder: where the runs and results.json are kept; a comparison that was interrupted goes on there.
        jobs: how many runs at a time; "auto": as many as cores and memory allow.
        threads: of each.
        overrides: keys of every run. A list runs each of its values: seed=[0, 1, 2].
    """
    comparison = Comparison(planned(source, overrides), Path(folder))
    for _ in comparison.run(jobs, threads=threads, progress=progress, quiet=quiet):
        pass
    return comparison


class Comparison:
    """Cells, and what came of those that have ended."""

    def __init__(self, cells: Sequence[Cell], folder: Path) -> None:
        self.cells = tuple(cells)
        self.folder = folder
        self.failures: dict[str, str] = {}
        """By folder, why a run failed."""
        self.settings = differing(cells)
        """By series, the settings in which they differ."""
        self._found: dict[str, Compared] = {}
        self._threads = 1

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Comparison: {len(self._found)} of {len(self.cells)} runs{failed}, in {self.folder}>"

    def run(
        self, jobs: Jobs = 1, *, command: str = "", threads: int = 1, **options: Any
    ) -> Iterator[tuple[Cell, Compared]]:
        """Run what is left, and give each cell with its result as it ends; then write the results. Options are those
        of `run_cells`. Where cells failed, the results of the others are written before `CellsFailed` is raised."""
        self._threads = threads
        try:
            for cell, folder in run_cells(self.cells, self.folder, jobs, threads=threads, **options):
                settings = self.settings[series_name(cell.label, cell.swept)]
                chosen = cell.experiment.values.get("noise_multiplier") is not None
                found = compared(cell.label, cell.epsilon, folder, settings, cell.swept, chosen)
                self._found[cell.folder] = found
                yield cell, found
        except CellsFailed as error:
            self.failures = error.failures
            self.write(command)
            raise
        self.write(command)

    @property
    def results(self) -> list[Compared]:
        """Run by run, in the order of the cells."""
        return list(self._by_folder().values())

    def _by_folder(self) -> dict[str, Compared]:
        return {cell.folder: self._found[cell.folder] for cell in self.cells if cell.folder in self._found}

    @property
    def rows(self) -> list[Row]:
        """Runs that differ in their seed alone, taken together."""
        return rows_of(self.results)

    def table(self, format: tables.Format = "markdown") -> str:
        """Mean, spread, epsilon and every setting that differs: as markdown, csv, latex or text."""
        return tables.table(self.rows, format)

    def to_pandas(self) -> pandas.DataFrame:
        """The same as a data frame, with all digits."""
        return tables.to_pandas(self.rows)

    def ranking(self, confidence: float = CONFIDENCE) -> list[Group]:
        """For each epsilon, rows by their mean, and which are not distinguishable from the best."""
        return ranked(self.rows, confidence)

    def paired(
        self, first: str, second: str, epsilon: float | None = None, confidence: float = CONFIDENCE
    ) -> Difference:
        """The score of one row minus that of another, over their common seeds; rows are named as in the ranking, and
        refused where they do not promise the same."""
        rows = [row for row in self.rows if row.series in (first, second)]
        asked = {row.target for row in rows} if epsilon is None else {epsilon}
        remedy = "say at which epsilon=... they are compared"
        expect(len(asked) <= 1, "one epsilon", sorted(asked, key=str), remedy)
        here = {row.series: row.scores for row in rows if row.target in asked}
        names = ", ".join(dict.fromkeys(row.series for row in self.rows))
        for name in (first, second):
            expect(name in here, f"one of {names}, with results at this epsilon", name, "name a row of the table")
        groups = alike(row for row in rows if row.target in asked)
        promised = {row.series: f"{group[0]} ({group[1]})" for group, own in groups.items() for row in own}
        found = ", and ".join(f"{name} {promise}" for name, promise in promised.items())
        remedy = "rows of one group of the ranking compare, and no others"
        expect(len(groups) <= 1, "two rows with the same guarantee on the same data", found, remedy)
        return paired(here, first, second, confidence)

    def write(self, command: str = "") -> None:
        """results.json, the tables and the picture, beside the runs."""
        if not self._found:
            return
        found, rows = self._by_folder(), self.rows
        cells = {cell.folder: cell for cell in self.cells}
        told: dict[str, Any] = {"failed": self.failures, "command": command, "threads": self._threads}
        write_results(self.folder / FILE, cells, found, **told)
        for name, form in tables.FILES.items():
            write_atomically(self.folder / name, tables.table(rows, form).encode())
        comparison_plot(rows, self.folder / "compare.png")
