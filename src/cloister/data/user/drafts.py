"""Drafts of schemas. A draft looks at one client's rows, so it is no more private than they are: it is to be checked.

What it says of values, ends of ranges and categories, is rounded and marked, and has to be replaced by what is publicly
known of the columns.
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.user.cells import MISSING, number_of, text_of
from cloister.data.user.csv_text import first_row
from cloister.data.user.draft_columns import Declared, column_draft, is_id
from cloister.data.user.plain_tables import column_names
from cloister.data.user.schema import Schema
from cloister.data.user.schema_files import toml_text
from cloister.data.user.tables import SEPARATORS, Layout, Table, client_files, read_file, readable
from cloister.errors import CloisterError, expect, nearest, note

WARNING = (
    "a draft from private data is not private: replace every value marked `check` by what is publicly known of the "
    "column, before the schema or a model made with it is shown to anybody"
)
LABELS = ("label", "target", "class", "y", "outcome", "diagnosis")
USABLE = ("category", "boolean", "number")
"""The kinds of columns that can be a label."""
FEW_CLASSES = 10
"""A column with more different values than this is not taken for one of classes, unless it is called a label."""


def inspect(
    path: str | Path, *, label: str | None = None, client: str | None = None, files: str | None = None
) -> Schema:
    """A schema drafted from one client's rows (of a folder, its first file), to be checked: a draft is not private.

    `label` names the column of labels; `client` that of clients, in one file of many (the first of them is looked at);
    `files` is the pattern of the clients' files in a folder.
    """
    text, source = draft(path, label, client, files)
    note(f"Drafted from {source}: {WARNING}.")
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
    expect(label is None or label != client, "client and label to be different columns", label, "name another")
    table = read_file(file, Layout(separator, () if header else (tuple(names),)))
    chosen, columns, comments = _columns(table, file, label, client)
    if label is None:
        comments[""] = {"label": "check: guessed"}
        note(f"label guessed: {chosen} (choose with --label)")
    said = {"client": client, "header": None if header else False, "files": files}
    said["separator"] = None if separator == "," else separator
    top = {"label": chosen, **{key: value for key, value in said.items() if value is not None}}
    warning = "".join(f"# {line}\n" for line in textwrap.wrap(f"Drafted from {file.name}: {WARNING}.", 110))
    return warning + toml_text({**top, "columns": columns}, comments), file


def _header(file: Path) -> tuple[bool, list[str], str]:
    """Whether a file begins with names (a line with a number or a gap in it has none), the columns' names, and what
    lies between them."""
    if file.suffix in (".parquet", ".npz"):
        names = column_names(file)
        if file.suffix == ".npz" and {"inputs", "labels"} <= set(names):
            raise CloisterError(f"Expected a table in {file}, found arrays: an .npz needs no schema.")
        return True, names, ","
    with readable(file):
        found = {one: _first_row(file, one) for one in SEPARATORS}
    separator = max(found, key=lambda one: len(found[one]))
    names = found[separator] or first_row(file, separator)
    if any(number_of(name) is not None or name in MISSING for name in names):
        return False, [f"column{number}" for number in range(1, len(names) + 1)], separator
    return True, names, separator


def _columns(
    table: Table, file: Path, label: str | None, client: str | None
) -> tuple[str, dict[str, dict[str, Any]], dict[str, Mapping[str, str]]]:
    """The label, what the columns seem to be, and what there is to check."""
    if not table.rows:
        raise CloisterError(f"Expected rows in {file}, found none: draft from a client that has some.")
    mine = np.ones(table.rows, dtype=bool) if client is None else table.cells(client).codes == 0
    found = {name: _declared(table, name, mine) for name in table.columns if name != client}
    labels = {name: _declared(table, name, mine, is_label=True) for name in found if label in (None, name)}
    chosen = _guessed(labels, int(mine.sum())) if label is None else label
    if chosen is None or labels[chosen][0]["kind"] not in USABLE:
        raise _no_label(file, chosen, labels)
    found[chosen] = labels[chosen]
    columns = {name: made for name, (made, _) in found.items()}
    if not any(column["kind"] != "ignore" for name, column in columns.items() if name != chosen):
        raise CloisterError(f"Expected a column to learn from in {file}, found none beside {chosen!r}: check the file.")
    return chosen, columns, {name: comments for name, (_, comments) in found.items()}


def _first_row(file: Path, separator: str) -> list[str]:
    """The first row's cells; none where quotes say that this is not the separator."""
    try:
        return first_row(file, separator)
    except CloisterError:
        return []


def _declared(table: Table, name: str, mine: Any, is_label: bool = False) -> Declared:
    """What a column seems to be, judging by the rows of one client."""
    cells = table.cells(name)
    codes = cells.codes[mine]
    counts = np.bincount(codes[codes >= 0], minlength=len(cells.values))
    seen = [cell for cell, count in zip(cells.values, counts, strict=True) if count]
    known = np.array([text_of(cell) not in MISSING for cell in seen], dtype=bool)
    made, comments = _judged(seen, counts[counts > 0], known, is_label)
    words = np.array([text_of(cell) == "none" for cell in seen], dtype=bool)
    if made["kind"] in ("category", "ignore") and words.any():  # as in none, mild, severe
        known |= words
        made, comments = _judged(seen, counts[counts > 0], known, is_label)
    if not is_label and is_id(name):
        made, comments = {"kind": "ignore"}, {"kind": "check: called like an id"}
    complete = bool(known.all()) and not (codes < 0).any() and "missing" not in made
    if is_label or complete:
        made.pop("fill", None)
    return made, comments


def _judged(seen: list[Any], counts: Any, known: Any, is_label: bool) -> Declared:
    return column_draft([cell for cell, fine in zip(seen, known, strict=True) if fine], counts[known], is_label)


def _guessed(labels: Mapping[str, Declared], rows: int) -> str | None:
    """The column that is called a label, else the last one of a few classes, else the last that can be one."""
    usable = [name for name, (made, _) in labels.items() if made["kind"] in USABLE and not is_id(name)]
    called = [name for known in LABELS for name in usable if name.lower() == known]
    few = [name for name in usable if _classes(labels[name]) <= min(FEW_CLASSES, max(rows // 2, 2))]
    return next(iter([*called, *reversed(few), *reversed(usable)]), None)


def _classes(declared: Declared) -> float:
    made = declared[0]
    return 2 if made["kind"] == "boolean" else len(made.get("categories", ())) or np.inf


def _no_label(file: Path, label: str | None, labels: Mapping[str, Declared]) -> CloisterError:
    if label is None:
        return CloisterError(f"Expected a column of labels in {file}, found none: name one with --label.")
    made, comments = labels[label]
    reason = comments["kind"].removeprefix("check: ") if made["kind"] == "ignore" else f"a {made['kind']}"
    return CloisterError(
        f"Expected the label {label!r} in {file} to be classes or numbers, found {reason}: name another with --label, "
        "or draft from another client's file."
    )
