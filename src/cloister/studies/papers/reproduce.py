"""All cells of a table or figure, run and set beside the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloister.errors import expect
from cloister.runs.files import write_atomically
from cloister.runs.folder import RunFolder
from cloister.runs.task_cache import TaskCache
from cloister.studies.cells import Cell, folder_name
from cloister.studies.execution import expect_settings, run_cells
from cloister.studies.papers.cells import PaperCell, cells_of
from cloister.studies.papers.files import PaperFile, find, read
from cloister.studies.papers.outcomes import Outcome, outcome_of, rows_of
from cloister.studies.papers.scale import Scale, scale_of
from cloister.studies.papers.table import Reproduction

WRITTEN: dict[str, Callable[[Reproduction], str]] = {
    "reproduce.md": Reproduction.markdown,
    "reproduce.csv": Reproduction.csv,
    "reproduce.json": Reproduction.json,
    "curves.csv": Reproduction.curves,
}
"""What is written beside the runs."""

Jobs = int | Literal["auto"]


def reproduce(
    name: str | Path,
    folder: str | Path | None = None,
    *,
    scale: str | float = "full",
    seeds: Sequence[int] | None = None,
    rows: str | None = None,
    jobs: Jobs = 1,
    progress: bool | None = None,
    **overrides: Any,
) -> Reproduction:
    """Run a paper's table or figure, or what is left of it, and set it beside the paper's numbers.

        found = cl.reproduce("fed-spa-table1-mnist", scale="tiny")
        print(found.markdown())

    Args:
        name: as `cloister reproduce` lists it, or the path of such a file (`experiments/papers/README.md`).
        folder: where the runs and tables are kept; by default runs/reproduce-NAME-SCALE. What is done is skipped.
        scale: "full" (as the paper), "here" (with data at hand), a part such as 0.1, "small" or "tiny".
        seeds: by default the file's.
        rows: only cells whose names match, such as "DP-FedSAM*".
        jobs: how many runs at a time; "auto": as many as cores and memory allow.
        overrides: keys of every run: device="cuda".
    """
    plan = Plan.of(read(find(str(name))), scale_of(str(scale)), seeds, rows, overrides)
    path = plan.folder if folder is None else Path(folder)
    for _ in plan.run(path, jobs, progress):
        pass
    return plan.found(path)


@dataclass(frozen=True)
class Plan:
    """The runs of a table that are asked for."""

    file: PaperFile
    scale: Scale
    cells: list[PaperCell]
    seeds: list[int]
    overrides: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        file: PaperFile,
        scale: Scale,
        seeds: Sequence[int] | None = None,
        rows: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Plan:
        """All cells, those whose names match `rows`, with the seeds of the file or others."""
        remedy = "seeds belong to --seeds 0,1 (in Python, seeds=[0, 1])"
        expect("seed" not in (overrides or {}), "keys of every run", "seed", remedy)
        over = dict(overrides or {})
        return cls(file, scale, cells_of(file, scale, over, rows), list(seeds or scale.seeds(file)), over)

    @property
    def folder(self) -> Path:
        """Where its runs are kept, unless somebody says where: the same whenever it is asked for."""
        return Path("runs") / folder_name(f"reproduce-{self.file.name}-{self.scale.name}", self.overrides)

    def run(self, folder: Path, jobs: Jobs = 1, progress: bool | None = None) -> Iterator[tuple[Cell, RunFolder]]:
        """Every cell with every seed, one after the other or several at a time; what is done is skipped."""
        for cell in self._all:  # also those of other rows and seeds, beside which these will stand
            _runs(folder, cell)
        tasks = TaskCache()
        cells = [cell.run(seed, tasks) for seed in self.seeds for cell in self.cells]
        yield from run_cells(cells, folder, jobs, progress=progress, beside=[*WRITTEN, *self._others(folder)])

    def found(self, folder: Path) -> Reproduction:
        """What there is so far, runs of other rows and seeds included; written into the folder as well."""
        outcomes = {cell.name: _outcomes(folder, cell) for cell in self._all}
        seeds = sorted({seed for own in outcomes.values() for seed in own} | set(self.seeds))
        asked = {cell.name for cell in self.cells}
        shown = [cell for cell in self._all if cell.name in asked or outcomes[cell.name]]
        result = Reproduction(self.file, self.scale, seeds, rows_of(self.file, shown, outcomes))
        for name, text in WRITTEN.items():
            write_atomically(folder / name, text(result).encode())
        return result

    @property
    def _all(self) -> list[PaperCell]:
        """Whatever rows are asked for."""
        return cells_of(self.file, self.scale, self.overrides)

    def _others(self, folder: Path) -> list[str]:
        """Runs of the same table with other rows or seeds, which are left alone."""
        mine = {folder_name(cell.method, {**cell.axes, "seed": seed}) for cell in self.cells for seed in self.seeds}
        there = [path.name for cell in self._all for path in _folders(folder, cell).values()]
        return [name for name in there if name not in mine]


def _folders(folder: Path, cell: PaperCell) -> dict[int, Path]:
    """The folders of a cell's runs, by seed."""
    begins = folder_name(cell.method, {**cell.axes, "seed": 0}).removesuffix("0")
    paths = folder.iterdir() if folder.is_dir() else ()
    numbers = {path: path.name.removeprefix(begins) for path in paths if path.name.startswith(begins)}
    return {int(number): path for path, number in sorted(numbers.items()) if number.isdigit()}


def _runs(folder: Path, cell: PaperCell) -> dict[int, RunFolder]:
    """Those of a cell, by seed. One with other settings (another epsilon, say) is none of them, whatever its name."""
    found = _folders(folder, cell)
    for seed, path in found.items():
        expect_settings(path, cell.experiment(seed).toml)
    return {seed: RunFolder.open(path) for seed, path in found.items()}


def _outcomes(folder: Path, cell: PaperCell) -> dict[int, Outcome]:
    """Of the runs that have ended."""
    return {seed: outcome_of(run) for seed, run in _runs(folder, cell).items() if run.finished}
