"""Which folders hold runs, and what the study that made them calls them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect
from cloister.runs.files import read_json

_DEEPEST = 3
"""A study has folders of runs, or folders of such folders; whoever names a whole disk is not looked after."""


@dataclass(frozen=True)
class Found:
    """A folder with a run, and what the study that made it says of it."""

    path: Path
    label: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the study's table, such as what a paper reports."""


def run_folders(paths: Sequence[Path]) -> list[Found]:
    """Every run in these folders, once, in the order of the studies that made them, else by name."""
    expect(bool(paths), "at least one folder", "none", "name the folder of a run, or of a comparison")
    found: dict[Path, Found] = {}
    for path in paths:
        if not path.is_dir():
            raise CloisterError(f"Expected folders of runs, found no folder {path}: check the name.")
        there = list(_inside(path, 0, set()))
        if not there:
            raise CloisterError(f"Expected a run, or runs, in {path}, found no description.json: check the name.")
        for one in there:
            found.setdefault(one.path.resolve(), one)
    return list(found.values())


def rankings(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What the studies in these folders say of which method is best, as their files have it; of several, by name."""
    files = [file for path in paths if (file := path / "results.json").is_file()]
    found = [(file, one) for file in files for one in _rows(file, "ranking")]
    if len(files) < 2:
        return [one for _, one in found]
    return [{**one, "title": f"{file.resolve().parent.name}: {one.get('title', '')}"} for file, one in found]


def _inside(path: Path, depth: int, seen: set[Path]) -> Iterator[Found]:
    """Each folder once: links that lead upwards would multiply them."""
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    if (path / "description.json").is_file():
        yield Found(path)
    elif depth < _DEEPEST:
        known = _known(path)
        order = {name: place for place, name in enumerate(known)}
        below = [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]
        for one in sorted(below, key=lambda each: (order.get(each.name, len(order)), each.name)):
            for run in _inside(one, depth + 1, seen):
                own = known.get(one.name) if run.label is None else None
                yield run if own is None else Found(run.path, own.label, own.more)


def _known(path: Path) -> dict[str, Found]:
    """By the name of a run's folder, what a study says of it, in its order; empty where there is no study's file."""
    if (path / "results.json").is_file():
        file = path / "results.json"
        return {one.path.name: one for one in _of_results(_rows(file, "cells"), _rows(file, "rows"))}
    if (path / "compare.json").is_file():
        return {one.path.name: one for one in _of_comparison(_rows(path / "compare.json", "rows"))}
    return {}


def _rows(file: Path, name: str) -> list[dict[str, Any]]:
    rows = read_json(file).get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _of_results(cells: Iterable[dict[str, Any]], rows: Iterable[dict[str, Any]]) -> Iterator[Found]:
    """A row has what its cells have in common: a label, and swept keys but for the seed."""
    more = {_row_of(row): row.get("more") or {} for row in rows}
    for cell in cells:
        if isinstance(cell.get("folder"), str) and isinstance(cell.get("label"), str):
            yield Found(Path(cell["folder"]), cell["label"], more.get(_row_of(cell), {}))


def _row_of(cell: Mapping[str, Any]) -> str:
    swept = cell.get("swept") or {}
    return json.dumps([cell.get("label"), {key: value for key, value in swept.items() if key != "seed"}])


def _of_comparison(rows: Iterable[dict[str, Any]]) -> Iterator[Found]:
    """As comparisons without seeds name their folders."""
    for row in rows:
        label, target = str(row.get("label")), row.get("target")
        name = label.replace(" ", "-")
        yield Found(Path(name if target is None else f"{name}-epsilon-{target:g}"), label)
