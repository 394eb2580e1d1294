"""Cells of many of the papers' tables on one machine, from one queue, until a time is up.

    python benchmarks/paper_tables.py missing [NAME...] [--seeds 0,1] > QUEUE.toml
    python benchmarks/paper_tables.py run QUEUE.toml OUTCOMES.jsonl [--folder runs/tables] [--jobs 14] [--seconds 560]
    python benchmarks/paper_tables.py same OUTCOMES.jsonl [NAME...] [--seeds 0,1]
    python benchmarks/paper_tables.py write OUTCOMES.jsonl... [--folder runs/tables]

`cloister reproduce` runs one table; on a GPU that is lent for minutes, all tables share one queue here, so that no
process waits for the last cell of a table. What came out of a cell is written down as soon as it has ended; cells that
are there are skipped, runs that were interrupted go on. The queue is a list, which `missing` writes of the cells that
results/papers/ lacks:

    [keys]                            # of every run: how it is computed, and nothing else
    device = "cuda"
    [[cells]]
    name = "pfl-table2-mnist"         # a file of experiments/papers
    rows = ["PFL*CNN+TS*"]            # patterns for cells, in the order in which they are run
    seeds = [0, 1]
    keys = { precision = "tf32" }     # of these runs, beside those above

`same` adds what need not be run: cells with every key and the seed of one that results/papers/ has in another table.

`write` makes of all outcomes what `cloister reproduce` writes, FOLDER/NAME/reproduce.json, here or on another machine;
`python benchmarks/results.py --paper FOLDER/NAME...` takes it over.

Many small runs on one GPU take turns unless NVIDIA's multi-process service runs (`nvidia-cuda-mps-control -d`), which
lets them compute side by side. It is not to be stopped half-way: where its clients were killed, new ones found the
device "busy or unavailable" and their cells failed; and one large network (ResNet-18) takes most of a GPU from others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import sys
import threading
import time
import tomllib
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from cloister.studies.papers.files import find, read
from cloister.studies.papers.outcomes import Outcome, outcome_of, rows_of
from cloister.studies.papers.reproduce import Plan
from cloister.studies.papers.scale import scale_of
from cloister.studies.papers.table import Reproduction

SCALE = "here"
PLACEMENT = ("device", "engine", "memory", "precision")
"""Keys that say how a run is computed: with others it is the same run, but for rounding."""
PAPERS = Path(__file__).parent.parent / "results" / "papers"


@dataclass(frozen=True)
class Item:
    """One run: a cell of a table, with a seed."""

    table: str
    cell: str
    seed: int
    keys: dict[str, Any]

    @property
    def place(self) -> tuple[str, str, int]:
        """What it is, however it is computed."""
        return self.table, self.cell, self.seed


def plan_of(table: str, keys: dict[str, Any], seeds: list[int] | None = None, rows: str | None = None) -> Plan:
    """Of some rows of a table."""
    return Plan.of(read(find(table)), scale_of(SCALE), seeds, rows, keys)


def items_of(asked: dict[str, Any]) -> list[Item]:
    """What a queue asks for, in its order, every run once."""
    found: dict[tuple[str, str, int], Item] = {}
    for entry in asked["cells"]:
        keys = {**asked.get("keys", {}), **entry.get("keys", {})}
        for rows in entry.get("rows", ["*"]):
            plan = plan_of(entry["name"], keys, entry.get("seeds", [0]), rows)
            for item in [Item(entry["name"], cell.name, seed, keys) for seed in plan.seeds for cell in plan.cells]:
                found.setdefault(item.place, item)
    return list(found.values())


def _end_with_parent() -> None:
    """Not to compute for nobody where the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def work(waiting: Any, told: Any, folder: Path, jobs: int) -> None:
    """A process: one cell after the other, until none is left."""
    import torch

    from cloister.engine.choice import share_gpu
    from cloister.runs.folder import RunFolder
    from cloister.runs.task_cache import TaskCache
    from cloister.studies.execution import run_cell

    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    share_gpu(jobs)
    tasks = TaskCache(2)
    while True:
        try:
            item = waiting.get(timeout=1)
        except queue.Empty:
            return
        began, found, failed = time.monotonic(), None, ""
        try:
            (paper_cell,) = [cell for cell in plan_of(item.table, item.keys).cells if cell.name == item.cell]
            cell = paper_cell.run(item.seed, tasks)
            path = folder / item.table / cell.folder
            if not (path.exists() and RunFolder.open(path).finished):
                run_cell(cell.experiment, path, lambda line: None)
            found = asdict(outcome_of(RunFolder.open(path)))
        except Exception:
            failed = traceback.format_exc()
        told.put((item, time.monotonic() - began, found, failed))


def run(asked: Path, outcomes: Path, folder: Path, jobs: int, seconds: float) -> None:
    """Whatever is not among the outcomes yet, as far as time allows."""
    began, there = time.monotonic(), {item.place for item, _ in known(outcomes)}
    items = [item for item in items_of(tomllib.loads(asked.read_text())) if item.place not in there]
    for table in {item.table for item in items}:
        (folder / table).mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    waiting, told = context.Queue(), context.Queue()
    for item in items:
        waiting.put(item)
    workers = [
        context.Process(target=work, args=(waiting, told, folder, jobs), daemon=True)
        for _ in range(min(jobs, len(items)))
    ]
    for worker in workers:
        worker.start()
    done = 0
    with outcomes.open("a") as file:
        while done < len(items) and time.monotonic() - began < seconds and any(one.is_alive() for one in workers):
            try:
                item, took, found, failed = told.get(timeout=1)
            except queue.Empty:
                continue
            done += 1
            if found is not None:
                _put(file, item, found)
            said = f"{item.table}, {item.cell}, {item.seed}: {took:.0f} s {(failed.strip().splitlines() or [''])[-1]}"
            print(f"{time.monotonic() - began:4.0f} s, {done}/{len(items)}: {said}", flush=True)
            if failed:
                print(failed, file=sys.stderr)
    for worker in workers:
        worker.terminate()
    waiting.cancel_join_thread()  # what nobody will take any more


def _put(file: TextIO, item: Item, outcome: dict[str, Any]) -> None:
    """Write it down, at once."""
    file.write(json.dumps({"item": asdict(item), "outcome": outcome}) + "\n")
    file.flush()
    os.fsync(file.fileno())


def same(tables: Sequence[str], seeds: Sequence[int] = (0,)) -> Iterator[tuple[Item, Outcome]]:
    """What cells that were not run have come to, because a cell of another table is the very same run."""
    found = {path.stem: json.loads(path.read_text())["cells"] for path in sorted(PAPERS.glob("*.json"))}
    runs: dict[tuple[str, int], dict[str, Any]] = {}
    there = set()
    for name, cells in found.items():
        for cell in cells:
            for seed, run in cell["runs"].items():
                runs.setdefault((_run(cell["settings"]), int(seed)), run)
                there.add((name, cell["cell"], int(seed)))
    for name in tables or list(found):
        for cell in plan_of(name, {}).cells:
            for seed in seeds:
                known = runs.get((_run(cell.keys), seed))
                if known is not None and (name, cell.name, seed) not in there:
                    yield Item(name, cell.name, seed, {}), Outcome(**known, lines=[])


def _run(settings: dict[str, Any]) -> str:
    """What makes a run the one that it is, but for its seed and the machine."""
    return json.dumps({key: value for key, value in settings.items() if key not in PLACEMENT}, sort_keys=True)


def missing(tables: Sequence[str], seeds: Sequence[int] = (0,)) -> str:
    """A queue of what was not run yet with these seeds, of tables that are named, or of all that were run in part."""
    lines = ["[keys]", 'device = "cuda"']
    for seed in seeds:
        for table in tables or [path.stem for path in sorted(PAPERS.glob("*.json"))]:
            path = PAPERS / f"{table}.json"
            cells = json.loads(path.read_text())["cells"] if path.exists() else []
            there = {cell["cell"] for cell in cells if str(seed) in cell["runs"]}
            rows = [cell.name for cell in plan_of(table, {}).cells if cell.name not in there]
            if rows:
                named = [f"    {json.dumps(row)}," for row in rows]
                lines += ["", "[[cells]]", f"name = {json.dumps(table)}", f"seeds = [{seed}]", "rows = [", *named, "]"]
    return "\n".join(lines) + "\n"


def known(outcomes: Path) -> Iterator[tuple[Item, Outcome]]:
    """What was written down; the last line of a process that was killed may be half of one."""
    for line in outcomes.read_text().splitlines() if outcomes.exists() else ():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        yield Item(**found["item"]), Outcome(**found["outcome"])


def write(files: Sequence[Path], folder: Path) -> None:
    """Every table as far as it was run."""
    tables: dict[str, dict[str, dict[int, Outcome]]] = {}
    keys: dict[str, dict[str, Any]] = {}
    for item, outcome in (one for path in files for one in known(path)):
        tables.setdefault(item.table, {}).setdefault(item.cell, {})[item.seed] = outcome
        keys.setdefault(item.table, item.keys)
    for table, outcomes in tables.items():
        plan = plan_of(table, keys[table])
        cells = [cell for cell in plan.cells if cell.name in outcomes]
        seeds = sorted({seed for own in outcomes.values() for seed in own})
        made = Reproduction(plan.file, plan.scale, seeds, rows_of(plan.file, cells, outcomes))
        (folder / table).mkdir(parents=True, exist_ok=True)
        (folder / table / "reproduce.json").write_text(made.json())
        print(f"{table}: {len(cells)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    running, writing, listing, taking = (what.add_parser(name) for name in ("run", "write", "missing", "same"))
    taking.add_argument("outcomes", type=Path)
    for one in (listing, taking):
        one.add_argument("tables", nargs="*")
        one.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0])
    running.add_argument("queue", type=Path)
    running.add_argument("outcomes", type=Path)
    running.add_argument("--jobs", type=int, default=1)
    running.add_argument("--seconds", type=float, default=float("inf"), help="when to stop; the same command goes on")
    writing.add_argument("outcomes", type=Path, nargs="+")
    for one in (running, writing):
        one.add_argument("--folder", type=Path, default=Path("runs/tables"))
    wanted = parser.parse_args()
    if wanted.what == "missing":
        print(missing(wanted.tables, wanted.seeds), end="")
    elif wanted.what == "same":
        with wanted.outcomes.open("a") as file:
            for item, outcome in same(wanted.tables, wanted.seeds):
                _put(file, item, asdict(outcome))
                print(f"{item.table}, {item.cell}, {item.seed}")
    elif wanted.what == "write":
        write(wanted.outcomes, wanted.folder)
    else:
        run(wanted.queue, wanted.outcomes, wanted.folder, wanted.jobs, wanted.seconds)


if __name__ == "__main__":
    main()
