"""Which folders hold runs, and what the study that made them calls them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect
from cloister.runs.files import read_json

_DEEPEST = 3
"""A study has folders of runs, or folders of such folders; whoever names a whole disk is not looked after."""


@dataclass(frozen=True)
class Found:
    """A folder with a run, and the label that a study gave it, if one did."""

    path: Path
    label: str | None = None


def run_folders(paths: Sequence[Path]) -> list[Found]:
    """Every run in these folders, once, in the order of the studies that made them, else by name."""
    found: dict[Path, Found] = {}
    for path in paths:
        if not path.is_dir():
            raise CloisterError(f"Expected folders of runs, found no folder {path}: check the name.")
        there = list(_inside(path, 0))
        if not there:
            raise CloisterError(f"Expected a run, or runs, in {path}, found no description.json: check the name.")
        for one in there:
            found.setdefault(one.path.resolve(), one)
    expect(bool(found), "at least one folder", "none", "name the folder of a run, or of a comparison")
    return list(found.values())


def _inside(path: Path, depth: int) -> Iterator[Found]:
    if (path / "description.json").is_file():
        yield Found(path)
    elif depth < _DEEPEST:
        labels = _labels(path)
        order = {name: place for place, name in enumerate(labels)}
        below = [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]
        for one in sorted(below, key=lambda each: (order.get(each.name, len(order)), each.name)):
            for run in _inside(one, depth + 1):
                yield Found(run.path, run.label or labels.get(one.name))


def _labels(path: Path) -> dict[str, str]:
    """By the name of a run's folder, its label, in the order of the study; empty where there is no study's file."""
    if (path / "results.json").is_file():
        return dict(_of_results(_rows(path / "results.json", "cells")))
    if (path / "compare.json").is_file():
        return dict(_of_comparison(_rows(path / "compare.json", "rows")))
    return {}


def _rows(file: Path, name: str) -> list[dict[str, Any]]:
    rows = read_json(file).get(name)
    fine = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    return rows if fine and rows is not None else []


def _of_results(cells: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for cell in cells:
        if isinstance(cell.get("folder"), str) and isinstance(cell.get("label"), str):
            yield Path(cell["folder"]).name, cell["label"]


def _of_comparison(rows: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """As `studies.compare.Planned` names folders."""
    for row in rows:
        label, target = str(row.get("label")), row.get("target")
        name = label.replace(" ", "-")
        yield (name if target is None else f"{name}-epsilon-{target:g}"), label
