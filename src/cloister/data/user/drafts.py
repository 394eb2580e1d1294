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

from cloister.data.user.cells import MISSING, days_of, number_of, text_of, truth_of
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


def inspect(
    path: str | Path, *, label: str | None = None, client: str | None = None, files: str | None = None
) -> Schema:
    """A schema drafted from one client's rows (of a folder, its first file), to be checked: a draft is not private.

    `label` names the column of labels; `client` that of clients, in one file of many (the first of them is looked at);
    `files` is the pattern of the clients' files in a folder.
    """
    text, source = draft(path, label, client, files)
    warnings.warn(f"Drafted from {source}: {WARNING}.", Note, stacklevel=2)
    return Schema.from_dict(tomllib.loads(text))


def draft(
    path: str | Path, label: str | None = None, client: str | None = None, files: str | None = None
) -> tuple[str, Path]:
    """The TOML of a draft with its comments, and the file that was looked at."""
    expect(isinstance(path, (str, Path)), "path to be that of a folder or a file", path, "give a text")
    where = Path(path)
    expect(where.is_dir() or files is None, "a folder beside files", str(path), "leave out files")
    file = client_files(where, files)[0][1] if where.is_dir() else where
    header, names, separator = _header(file)
    for name in (label, client):
        if name is not None and name not in names:
            raise CloisterError(f"Expected a column {name!r} in {file}, found none: {nearest(name, names)}.")
    chosen = label or next((name for known in LABELS for name in names if name.lower() == known), names[-1])
    columns, comments = _columns(file, Layout(separator, () if header else (tuple(names),)), chosen, client)
    if not any(column["kind"] != "ignore" for name, column in columns.items() if name != chosen):
        raise CloisterError(f"Expected a column to learn from in {file}, found none beside {chosen!r}: check the file.")
    said = {"client": client, "header": None if header else False, "files": files}
    said["separator"] = None if separator == "," else separator
    top = {"label": chosen, **{key: value for key, value in said.items() if value is not None}}
    warning = "".join(f"# {line}\n" for line in textwrap.wrap(f"Drafted from {file.name}: {WARNING}.", 110))
    return warning + toml_text({**top, "columns": columns}, comments), file


def _header(file: Path) -> tuple[bool, list[str], str]:
    """Whether a file begins with names (a line with a number or a gap in it has none), the columns' names, and what
    lies between them."""
    if file.suffix in (".parquet", ".npz"):
        return True, column_names(file), ","
    with readable(file):
        separator, names = max(((one, first_row(file, one)) for one in ",;\t"), key=lambda found: len(found[1]))
    if any(number_of(name) is not None or name in MISSING for name in names):
        return False, [f"column{number}" for number in range(1, len(names) + 1)], separator
    return True, names, separator


Declared = tuple[dict[str, Any], Mapping[str, str]]
"""What a column is said to be, and what there is to check."""


def _columns(file: Path, layout: Layout, label: str, client: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the columns seem to be, judging by the rows of one client."""
    table = read_file(file, layout)
    if not table.rows:
        raise CloisterError(f"Expected rows in {file}, found none: draft from a client that has some.")
    whose = np.zeros(table.rows) if client is None else table.cells(client).codes
    columns, comments = {}, {}
    for name in table.columns:
        if name == client:
            continue
        cells = table.cells(name)
        codes = cells.codes[whose == 0]
        counts = np.bincount(codes[codes >= 0], minlength=len(cells.values))
        seen = [cell for cell, count in zip(cells.values, counts, strict=True) if count]
        known = [text_of(cell) not in MISSING for cell in seen]
        columns[name], comments[name] = _column(
            [cell for cell, fine in zip(seen, known, strict=True) if fine], counts[counts > 0][known], name == label
        )
        complete = all(known) and not (codes < 0).any()
        if name == label or complete:
            columns[name].pop("fill", None)
    return columns, comments


def _column(values: Sequence[Any], weights: Any, is_label: bool) -> Declared:
    """What a column seems to be, from its different cells and how often each is there."""
    if not values:
        return {"kind": "ignore"}, {"kind": "check: nothing but missing cells"}
    numbers = [number_of(cell) for cell in values]
    if {truth_of(cell) for cell in values} == {0, 1}:
        return _truth(values, weights)
    if None not in numbers and not (is_label and len(set(numbers)) <= MOST_CATEGORIES and _whole(numbers)):
        return _number(np.repeat(np.array(numbers, dtype=float), weights))
    if all(days_of(cell) is not None for cell in values) and None in numbers:
        return _date(values)
    words = {text_of(cell) if number is None else text_of(number) for cell, number in zip(values, numbers, strict=True)}
    if len(words) > MOST_CATEGORIES:
        return {"kind": "ignore"}, {"kind": "check: many different words"}
    if len(words) < 2:
        return {"kind": "ignore"}, {"kind": "check: the same everywhere"}
    ordered = sorted(words, key=lambda word: (number_of(word) or 0.0, word))
    made = {"kind": "category", "categories": ordered, "fill": text_of(values[int(np.argmax(weights))])}
    return made, {"categories": "check", "fill": "check"}


def _whole(numbers: Sequence[Any]) -> bool:
    return all(float(number).is_integer() for number in numbers)


def _truth(values: Sequence[Any], weights: Any) -> Declared:
    return {"kind": "boolean", "fill": bool(truth_of(values[int(np.argmax(weights))]))}, {"fill": "check"}


def _number(numbers: Any) -> Declared:
    low, high = rounded_out(float(numbers.min()), float(numbers.max()))
    made = {"kind": "number", "range": [low, high], "fill": _short(float(np.median(numbers)))}
    return made, {"range": "check", "fill": "check"}


def _date(values: Sequence[Any]) -> Declared:
    years = sorted(int(text_of(value)[:4]) for value in values)
    made = {"kind": "date", "range": [f"{years[0]}-01-01", f"{years[-1] + 1}-01-01"], "fill": f"{years[0]}-01-01"}
    return made, {"range": "check", "fill": "check"}


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
