"""Fuzzed data files of every format: they are read, or refused in one sentence, and nothing in them is executed."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import cloister as cl
from torture.campaign import Campaign, Case, Tally
from torture.configs import Prepared, nothing_trained
from torture.damage import changed, hostile
from torture.outcomes import Unexpected, of_command

RUN = ("method=pfl", "clip_norm=1.0", "batch_size=4", "local_epochs=1", "noise_multiplier=1.3", "delta=1e-3")
RUN += ("cohort=full", "rounds=1", "engine=loop", "lr=0.1", "allow_large_delta=true")
SCHEMA = """label = "ill"
[columns.age]
kind = "number"
range = [0, 100]
fill = 50
[columns.kind]
kind = "category"
categories = ["a", "b", "c"]
[columns.ill]
kind = "category"
categories = ["0", "1"]
"""


def _rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng(seed)
    return draws.normal(size=(count, 3)).astype(np.float32), np.arange(count) % 2


def _csv(folder: Path) -> None:
    for client in range(2):
        x, y = _rows(12, client)
        lines = [f"{a:.4g},{b:.4g},{c:.4g},{label}" for (a, b, c), label in zip(x, y, strict=True)]
        (folder / f"client{client}.csv").write_text("\n".join(["a,b,c,label", *lines]) + "\n")


def _npz(folder: Path) -> None:
    for client in range(2):
        x, y = _rows(12, client)
        np.savez(folder / f"client{client}.npz", inputs=x, labels=y)


def _parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    for client in range(2):
        x, y = _rows(12, client)
        table = pyarrow.table({"a": x[:, 0], "b": x[:, 1], "label": y})
        parquet.write_table(table, folder / f"client{client}.parquet")


def _images(folder: Path) -> None:
    draws = np.random.default_rng(0)
    for name in ("ann/cat", "ann/dog", "bob/cat", "bob/dog"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = draws.integers(0, 256, (6, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def _arrays(folder: Path) -> None:
    people = [_rows(12, client) for client in range(3)]
    folder.rmdir()
    cl.data.write_array_folder(folder, people, test=_rows(5, 9))


def _schema(folder: Path) -> None:
    for client in range(2):
        lines = [f"{20 + 5 * row},{'abc'[row % 3]},{row % 2}" for row in range(12)]
        (folder / f"client{client}.csv").write_text("\n".join(["age,kind,ill", *lines]) + "\n")
    (folder.parent / "schema.toml").write_text(SCHEMA)


FORMATS: dict[str, Callable[[Path], None]] = {
    "csv": _csv,
    "npz": _npz,
    "parquet": _parquet,
    "images": _images,
    "arrays": _arrays,
    "schema": _schema,
}
CELLS = ("", " ", "nan", "inf", "1e999", "-1e-999", "0x10", "1,5", "true", '"', "'", "é" * 50, "\0", "9" * 400, "=1+1")


def data_files(folder: Path, seed: int) -> Case:
    """One folder of data, of which one or two files are harmed: inspected, and made ready for a run."""
    for name, make in FORMATS.items():
        (folder / "whole" / name / "data").mkdir(parents=True, exist_ok=True)
        make(folder / "whole" / name / "data")
    mark, run = folder / "executed", folder / "run"

    def case(number: int, tally: Tally) -> None:
        chance = random.Random(f"{seed} {number}")
        kind, place = chance.choice(list(FORMATS)), folder / "harmed"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / "whole" / kind, place)
        done = [harmed(place, chance, mark) for _ in range(chance.choice((1, 1, 2)))]
        try:
            look(kind, place, run, chance, tally)
        except Exception as error:
            raise Unexpected(f"{kind}, {'; '.join(done)}: {type(error).__name__}: {str(error)[:300]}") from error
        if run.exists() or mark.exists():
            mark.unlink(missing_ok=True)
            shutil.rmtree(run, ignore_errors=True)
            raise Unexpected(f"{kind}, {'; '.join(done)}: a folder was left, or code was executed")

    return case


def harmed(place: Path, chance: random.Random, mark: Path) -> str:
    """Do something to one of the files, and say what."""
    file = chance.choice(sorted(path for path in place.rglob("*") if path.is_file()))
    content, how = file.read_bytes(), chance.randrange(5)
    if how == 0:
        file.write_bytes(hostile(chance, mark))
        return f"hostile {file.name}"
    if how == 1:
        file.unlink()
        return f"without {file.name}"
    if how == 2 and file.suffix in (".csv", ".toml"):
        lines = content.decode(errors="replace").split("\n")
        at = chance.randrange(len(lines))
        cells = lines[at].split(",")
        cells[chance.randrange(len(cells))] = chance.choice(CELLS)
        lines[at] = ",".join(cells)
        file.write_text("\n".join(lines), errors="replace")
        return f"a cell of {file.name}"
    if how == 3:
        other = chance.choice(sorted(path for path in place.rglob("*") if path.is_file()))
        file.write_bytes(other.read_bytes())
        return f"{other.name} as {file.name}"
    file.write_bytes(changed(content, chance))
    return f"changed {file.name}"


def look(kind: str, place: Path, run: Path, chance: random.Random, tally: Tally) -> None:
    """Everything that reads data reads these."""
    data = place / "data"
    if chance.random() < 0.3 and kind in ("csv", "parquet", "npz", "schema"):
        status, _, _ = of_command("data", "inspect", data)
        tally.counts["drafted" if status == 0 else "not drafted"] += 1
    more = {"images": ["size=[6, 4]"], "schema": [f"schema={place / 'schema.toml'}"]}.get(kind, [])
    try:
        with nothing_trained():
            of_command("run", f"data={data}", *RUN, *more, "--folder", run)
    except Prepared:
        tally.counts[f"{kind}: read"] += 1
    else:
        tally.counts[f"{kind}: refused"] += 1


CAMPAIGN = Campaign("data files", "a folder of data with harmed files", 2000, data_files, least=12)
