"""Drafts of schemas. A draft looks at one client's rows, so it is no more private than they are: it is to be checked.

What it says of values, ends of ranges and categories, is rounded and marked, and has to be replaced by what is publicly
known of the columns.
"""

from __future__ import annotations

import math
import textwrap
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.user.cells import MISSING, Cells, days_of, number_of, text_of, truth_of
from cloister.data.user.csv_text import first_row
from cloister.data.user.plain_tables import column_names
from cloister.data.user.schema import Schema
from cloister.data.user.schema_files import toml_text
from cloister.data.user.tables import Layout, client_files, read_file, readable
from cloister.errors import CloisterError, Note, expect, nearest

WARNING = (
    "a draft from private data is not private: replace every value marked `check` by what is publicly known of the "
    "column, before the schema or a model made with it is shown to anybody"
)
LABELS = ("label", "target", "class", "y", "outcome", "diagnosis")
MOST_CATEGORIES = 20
"""More different words than this are taken for names or remarks, and ignored."""


def inspect(path: str | Path, *, label: str | None = None, files: str | None = None) -> Schema:
    """A schema drafted from one client's file (of a folder, the first), to be checked: a draft is not private.

    `label` names the column of labels; `files` is the pattern of the clients' files in a folder.
    """
    text, source = draft(path, label, files)
    warnings.warn(f"Drafted from {source}: {WARNING}.", Note, stacklevel=2)
    return Schema.from_dict(tomllib.loads(text))


def draft(path: str | Path, label: str | None = None, files: str | None = None) -> tuple[str, Path]:
    """The TOML of a draft with its comments, and the file that was looked at."""
    expect(isinstance(path, (str, Path)), "path to be that of a folder or a file", path, "give a text")
    where = Path(path)
    file = client_files(where, files)[0][1] if where.is_dir() else where
    expect(where.is_dir() or files is None, "a folder beside files", str(path), "leave out files")
    header, names = _header(file)
    layout = Layout(headers=() if header else (tuple(names),))
    table = read_file(file, layout)
    if not table.rows:
        raise CloisterError(f"Expected rows in {file}, found none: draft from a client that has some.")
    cells = {name: table.cells(name) for name in names}
    columns, comments = {}, {}
    chosen = _label(names, label)
    for name, column in cells.items():
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.values))
        columns[name], comments[name] = _column(column.values, counts, name == chosen)
        if "fill" in columns[name] and (name == chosen or not _has_gaps(column)):
            del columns[name]["fill"]
    if not any(columns[name]["kind"] != "ignore" for name in names if name != chosen):
        raise CloisterError(f"Expected a column to learn from in {file}, found none beside {chosen!r}: check the file.")
    top: dict[str, Any] = {"label": chosen}
    top |= {} if header else {"header": False}
    if where.is_dir() and files is not None:
        top["files"] = files
    warning = "".join(f"# {line}\n" for line in textwrap.wrap(f"Drafted from {file.name}: {WARNING}.", 110))
    return warning + toml_text({**top, "columns": columns}, comments), file


def _header(file: Path) -> tuple[bool, list[str]]:
    """Whether a file begins with names, and the columns' names; a line with a number or a gap in it has none."""
    if file.suffix in (".parquet", ".npz"):
        return True, column_names(file)
    with readable(file):
        names = first_row(file)
    if any(number_of(name) is not None or name in MISSING for name in names):
        return False, [f"column{number}" for number in range(1, len(names) + 1)]
    return True, names


def _label(names: Sequence[str], label: str | None) -> str:
    if label is not None:
        if label not in names:
            raise CloisterError(f"Expected a column {label!r}, found none: {nearest(label, names)}.")
        return label
    return next((name for known in LABELS for name in names if name.lower() == known), names[-1])


def _column(cells: Sequence[Any], counts: Any, is_label: bool) -> tuple[dict[str, Any], Mapping[str, str]]:
    """What a column seems to be, and what there is to check."""
    known = [number for number, cell in enumerate(cells) if text_of(cell) not in MISSING]
    values, weights = [cells[number] for number in known], np.asarray(counts)[known]
    if not values:
        return {"kind": "ignore"}, {"kind": "check: nothing but missing cells"}
    numbers = [number_of(cell) for cell in values]
    if all(truth_of(cell) is not None for cell in values) and len(values) == 2:
        made, notes = _truth(values, weights)
    elif None not in numbers and not (is_label and len(set(numbers)) <= MOST_CATEGORIES and _whole(numbers)):
        made, notes = _number(np.repeat(np.array(numbers, dtype=float), weights))
    elif all(days_of(cell) is not None for cell in values) and None in numbers:
        made, notes = _date(values)
    elif len(values) <= MOST_CATEGORIES:
        made, notes = _category(values, weights)
    else:
        made, notes = {"kind": "ignore"}, {"kind": "check: many different words"}
    return made, notes


def _has_gaps(column: Cells) -> bool:
    return bool((column.codes < 0).any()) or any(text_of(cell) in MISSING for cell in column.values)


def _whole(numbers: Sequence[Any]) -> bool:
    return all(float(number).is_integer() for number in numbers)


def _truth(values: Sequence[Any], weights: Any) -> tuple[dict[str, Any], Mapping[str, str]]:
    return {"kind": "boolean", "fill": bool(truth_of(values[int(np.argmax(weights))]))}, {"fill": "check"}


def _number(numbers: Any) -> tuple[dict[str, Any], Mapping[str, str]]:
    low, high = rounded_out(float(numbers.min()), float(numbers.max()))
    made = {"kind": "number", "range": [low, high], "fill": _short(float(np.median(numbers)))}
    return made, {"range": "check", "fill": "check"}


def _date(values: Sequence[Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    years = sorted(int(text_of(value)[:4]) for value in values)
    made = {"kind": "date", "range": [f"{years[0]}-01-01", f"{years[-1] + 1}-01-01"], "fill": f"{years[0]}-01-01"}
    return made, {"range": "check", "fill": "check"}


def _category(values: Sequence[Any], weights: Any) -> tuple[dict[str, Any], Mapping[str, str]]:
    words = sorted({text_of(value) for value in values}, key=lambda word: (number_of(word) or 0.0, word))
    if len(words) < 2:
        return {"kind": "ignore"}, {"kind": "check: the same everywhere"}
    made = {"kind": "category", "categories": words, "fill": text_of(values[int(np.argmax(weights))])}
    return made, {"categories": "check", "fill": "check"}


def rounded_out(low: float, high: float) -> tuple[float, float]:
    """Ends of a range that are round numbers, outside of both.

    >>> rounded_out(23.0, 77.0), rounded_out(0.13, 6.2), rounded_out(5, 5)
    ((20, 80), (0, 7), (4, 6))
    """
    size = max(high - low, abs(high) * 1e-6, 1e-300)
    step = 10.0 ** math.floor(math.log10(size))
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    if ends[0] == ends[1]:
        ends = ends[0] - 1, ends[1] + 1
    return _short(ends[0]), _short(ends[1])


def _short(number: float) -> float:
    """A number of few digits, whole where it is."""
    short = float(f"{number:.6g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
