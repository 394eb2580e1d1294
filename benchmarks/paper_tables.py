"""Cells of many of the papers' tables on one machine, from one queue, until a time is up.

    python benchmarks/paper_tables.py QUEUE.toml --folder runs/tables --jobs 14 [--seconds 560] [--out FOLDER]

`cloister reproduce` runs one table; on a GPU that is lent for minutes, all tables share one queue here, so that no
process waits for the last cell of a table. What is done is skipped, what was interrupted goes on. The queue is a list:

    [[cells]]
    name = "pfl-table2-mnist"         # a file of experiments/papers
    rows = ["PFL*CNN+TS*"]            # patterns for cells, in the order in which they are run
    seeds = [0, 1]
    keys = { precision = "tf32" }     # of every run, beside [keys]: how it is computed

Each table's reproduce.json is written into its folder, and copied to --out/NAME.json; with --jobs 0 nothing else is
done. Many small runs on one GPU take turns unless NVIDIA's multi-process service runs (`nvidia-cuda-mps-control -d`),
which lets them compute side by side.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import shutil
import sys
import time
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.studies.papers.files import find, read
from cloister.studies.papers.reproduce import Plan
from cloister.studies.papers.scale import scale_of

SCALE = "here"


@dataclass(frozen=True)
class Item:
    """One run: a cell of a table, with a seed."""

    table: str
    cell: str
    seed: int
    keys: dict[str, Any]


def plan_of(table: str, keys: dict[str, Any], seeds: list[int] | None = None, rows: str | None = None) -> Plan:
    """Of some rows of a table."""
    return Plan.of(read(find(table)), scale_of(SCALE), seeds, rows, keys)


def items_of(asked: dict[str, Any]) -> Iterator[Item]:
    """What a queue asks for, in its order, every run once."""
    seen = set()
    for entry in asked["cells"]:
        keys = {**asked.get("keys", {}), **entry.get("keys", {})}
        for rows in entry.get("rows", ["*"]):
            plan = plan_of(entry["name"], keys, entry.get("seeds", [0]), rows)
            for seed in plan.seeds:
                for cell in plan.cells:
                    if (entry["name"], cell.name, seed) not in seen:
                        seen.add((entry["name"], cell.name, seed))
                        yield Item(entry["name"], cell.name, seed, keys)


def work(waiting: Any, told: Any, folder: Path, jobs: int) -> None:
    """A process: one cell after the other, until none is left."""
    import torch

    from cloister.engine.choice import share_gpu
    from cloister.runs.folder import RunFolder
    from cloister.runs.task_cache import TaskCache
    from cloister.studies.execution import run_cell

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    share_gpu(jobs)
    tasks = TaskCache(2)
    while True:
        try:
            item = waiting.get(timeout=1)
        except queue.Empty:
            return
        began, failed = time.monotonic(), ""
        (found,) = [cell for cell in plan_of(item.table, item.keys).cells if cell.name == item.cell]
        cell = found.run(item.seed, tasks)
        path = folder / item.table / cell.folder
        try:
            if not (path.exists() and RunFolder.open(path).finished):
                run_cell(cell.experiment, path, lambda line: None)
        except Exception:
            failed = traceback.format_exc()
        told.put((item, time.monotonic() - began, failed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("queue", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("runs/tables"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop; the same command goes on")
    parser.add_argument("--out", type=Path, help="where copies of all reproduce.json are put")
    wanted = parser.parse_args()
    began = time.monotonic()
    items = list(items_of(tomllib.loads(wanted.queue.read_text())))
    for table in {item.table for item in items}:
        (wanted.folder / table).mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    waiting, told = context.Queue(), context.Queue()
    for item in items:
        waiting.put(item)
    workers = [
        context.Process(target=work, args=(waiting, told, wanted.folder, wanted.jobs), daemon=True)
        for _ in range(min(wanted.jobs, len(items)))
    ]
    for worker in workers:
        worker.start()
    done = 0
    while done < len(items) and time.monotonic() - began < wanted.seconds and any(one.is_alive() for one in workers):
        try:
            item, seconds, failed = told.get(timeout=1)
        except queue.Empty:
            continue
        done += 1
        at = time.monotonic() - began
        last = failed.strip().splitlines()[-1] if failed else ""
        print(
            f"{at:4.0f} s, {done}/{len(items)}: {item.table}, {item.cell}, {item.seed}: {seconds:.0f} s {last}",
            flush=True,
        )
        if failed:
            print(failed, file=sys.stderr)
    for worker in workers:
        worker.terminate()
    write(items, wanted.folder, wanted.out)


def write(items: list[Item], folder: Path, out: Path | None) -> None:
    """Every table as far as it was run."""
    for table in dict.fromkeys(item.table for item in items):
        keys = next(item.keys for item in items if item.table == table)
        plan_of(table, keys).found(folder / table)
        if out is not None:
            shutil.copy(folder / table / "reproduce.json", out / f"{table}.json")


if __name__ == "__main__":
    main()
