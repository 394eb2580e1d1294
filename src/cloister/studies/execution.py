"""Running the cells of a study: what is done is skipped, what was interrupted goes on, what fails loses nothing else.

A cell computes the same bits whatever the number of jobs, because every job has the same number of threads. It is what
`cloister run` computes with the same keys on as many threads (OMP_NUM_THREADS=1).
"""

from __future__ import annotations

import gc
import os
import re
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from cloister.errors import CloisterError, expect, expect_count, note
from cloister.runs.callbacks import Callback, Record
from cloister.runs.config import Experiment
from cloister.runs.files import alone_in, write_atomically
from cloister.runs.folder import RunFolder
from cloister.studies.cells import Cell, expect_apart
from cloister.studies.pool import Failure, WorkerPool
from cloister.studies.progress import CellProgress
from cloister.studies.resources import jobs_for

ERRORS = "errors.txt"
"""Beside the runs: what went wrong in those that failed, in full."""

RESULTS = (
    *("results.json", "table.md", "table.csv", "table.tex", "compare.png", "report.html", ERRORS),
    *("demo.json", "demo.png", "compare.json"),
)
"""What is written beside the runs; the last by earlier versions."""

_ELSEWHERE = "choose another --folder, or leave it out"


class CellsFailed(CloisterError):
    """Some runs of a study failed; the others are complete."""

    def __init__(self, failures: Mapping[str, str], total: int) -> None:
        self.failures = dict(failures)
        """By folder: why."""
        first = "; ".join(f"{folder}: {why}" for folder, why in list(failures.items())[:1])
        super().__init__(
            f"Expected all {total} runs to end, found that {len(failures)} failed ({first}): correct the cause "
            f"({ERRORS} in the folder has all of it) and give the same command with the same folder, which goes on "
            "with what is left."
        )


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int | Literal["auto"] = 1,
    *,
    threads: int = 1,
    progress: bool | None = None,
    quiet: bool = False,
    beside: Sequence[str] = (),
) -> Iterator[tuple[Cell, RunFolder]]:
    """Run them, each into a folder of its own inside `folder`, and give each when it has ended.

    Args:
        jobs: how many at a time. One runs in this process; more run in processes of their own, each of which computes
            one cell after the other. "auto": as many as cores and memory allow.
        threads: of every job. Another number rounds sums in another order, so that the results differ by that.
        progress: True shows a line over all cells, elsewhere than on a terminal now and then; None on terminals alone.
        quiet: neither that line nor the runs' notes.
        beside: names of files that may lie in the folder beside the runs and their results.

    Cells that are there already, with the same settings, are given as they are. A folder that holds anything else is
    refused before the first cell starts. When all others have ended, cells that failed raise `CellsFailed`.
    """
    expect_apart(cells)
    expect_count("threads", threads, "1 suits many small runs")
    if jobs != "auto":
        expect_count("jobs", jobs, 'how many runs at a time, or "auto"')
    expect_own(folder, cells, beside)
    # Two at once would each fail on what the other is at, and write results with half of the runs.
    with nullcontext() if "RANK" in os.environ else alone_in(folder):  # torchrun: all processes are at the same run
        yield from _run_left(cells, folder, jobs, threads, progress, quiet)


def _run_left(
    cells: Sequence[Cell],
    folder: Path,
    jobs: int | Literal["auto"],
    threads: int,
    progress: bool | None,
    quiet: bool,
) -> Iterator[tuple[Cell, RunFolder]]:
    done = {cell.folder for cell in cells if _has_ended(folder / cell.folder)}
    left = [cell for cell in cells if cell.folder not in done]
    count = min(jobs_for(left, threads) if jobs == "auto" else jobs, max(len(left), 1))
    failures: dict[str, Failure] = {}
    bar = CellProgress(False if quiet else progress, cells, done, count)
    with bar:
        yield from ((cell, RunFolder.open(folder / cell.folder)) for cell in cells if cell.folder in done)
        run = _in_this_process if count == 1 else _in_workers
        for cell, failure, notes in run(left, folder, count, threads, bar):
            for text in () if quiet else notes:
                note(text)
            bar.ended(cell, failure is not None)
            if failure is None:
                yield cell, RunFolder.open(folder / cell.folder)
            else:
                failures[cell.folder] = failure
                _write_errors(folder, failures)
    if failures:
        by_cell = {cell.folder: failures[cell.folder].message for cell in cells if cell.folder in failures}
        raise CellsFailed(by_cell, len(cells))
    (folder / ERRORS).unlink(missing_ok=True)


Ended = Iterator[tuple[Cell, Failure | None, Sequence[str]]]
Tell = Callable[[Mapping[str, Any]], None]


def _in_this_process(cells: Sequence[Cell], folder: Path, jobs: int, threads: int, bar: CellProgress) -> Ended:
    """One after the other, right here; notes are given as they come."""
    for cell in cells:
        failure = None
        with _threads(threads):
            try:
                run_cell(cell.experiment, folder / cell.folder, partial(bar.at, cell))
            except Exception as error:
                failure = Failure.of(error, traceback.format_exc())
        yield cell, failure, ()


def _in_workers(cells: Sequence[Cell], folder: Path, jobs: int, threads: int, bar: CellProgress) -> Ended:
    """Several at a time, in processes that are gone when this is left, however that happens."""
    said: set[str] = set()
    with WorkerPool(jobs, threads) as pool:
        for cell, failure, notes in pool.run(cells, folder, bar.at):
            new = [text for text in notes if text not in said]  # all cells of a study would say the same
            said.update(new)
            yield cell, failure, new


class _Rounds(Callback):
    """A callback that tells of every round what a line about it needs."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell

    def on_round(self, record: Record) -> None:
        name = record.not_private.get("monitor", "accuracy")
        score = {} if name not in record.not_private else {"monitor": name, name: record.not_private[name]}
        self.tell({"round": record.round, "epsilon": record.released["epsilon"], **score})


def run_cell(experiment: Experiment, path: Path, tell: Tell) -> None:
    """Run it from the start, or from where it stopped; `tell` is told of every round."""
    try:
        experiment.start(
            folder=path, config=experiment.toml, progress=False, resume=path.exists(), callbacks=[_Rounds(tell)]
        )
    finally:
        if str(experiment.values.get("device", "cpu")) != "cpu":  # its graphs are of no use to the next
            gc.collect()
            torch.cuda.empty_cache()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _has_ended(path: Path) -> bool:
    return path.exists() and RunFolder.open(path).finished


def _write_errors(folder: Path, failures: Mapping[str, Failure]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(f"{name}\n{failure.details}" for name, failure in failures.items())
    write_atomically(folder / ERRORS, text.encode())


def expect_own(folder: Path, cells: Sequence[Cell], beside: Sequence[str] = ()) -> None:
    """Refuse a folder in which there is anything but these runs, with these settings, and what came of them."""
    expect(bool(cells), "at least one run", "none", "name some methods, and epsilons = [8.0, 2.0] on top")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CloisterError(f"Expected a new folder, found that {folder} is a file: {_ELSEWHERE}.")
    names = {cell.folder: cell for cell in cells}
    # A run that was killed while its folder was laid out leaves a draft, which is in nobody's way.
    draft = re.compile(r"\.(?P<name>.+)\.[0-9a-f]+(\.cloister-draft)?")
    for path in sorted(folder.iterdir()):
        half = draft.fullmatch(path.name)
        if path.name.removesuffix(".new") in (*RESULTS, *beside) or (half and half["name"] in names):
            continue
        is_run = (path / "config.toml").is_file()
        if path.name not in names or not is_run:
            remedy = ("ask for that run, too, or " if is_run else "") + _ELSEWHERE
            raise CloisterError(
                f"Expected a new folder, or one with these runs alone, found {path.name} in {folder}: {remedy}."
            )
        expect_settings(path, names[path.name].experiment.toml)


def expect_settings(path: Path, now: str) -> None:
    """Refuse a run's folder whose settings are not these, and name those that differ."""
    config = path / "config.toml"
    before = config.read_text() if config.is_file() else ""
    if before != now:
        was, found = _differences(before, now) if before else ("", "none")
        raise CloisterError(f"Expected the settings with which {path} was run{was}, found {found}: {_ELSEWHERE}.")


def _differences(before: str, now: str) -> tuple[str, str]:
    """The settings in which two runs differ, as each has them, in words."""
    try:
        told = tomllib.loads(before), tomllib.loads(now)
    except ValueError:  # somebody wrote into the file
        return "", "others"
    keys = [key for key in {**told[0], **told[1]} if told[0].get(key) != told[1].get(key)]
    was, found = (", ".join(f"{key} = {own.get(key, 'its default')}" for key in keys[:4]) for own in told)
    more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
    return (f" ({was}{more})", f"{found}{more}") if keys else ("", "others")
