"""Tables and arrays without a schema: every column is a number, taken as it is."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.raw import Array
from cloister.data.user.columns import Column
from cloister.data.user.csv_text import CsvText
from cloister.data.user.schema import Schema
from cloister.data.user.tables import Layout, Table, frame_columns, readable, separator_remedy
from cloister.errors import CloisterError, nearest


def plain_schema(raw: Any, label: Sequence[str], without: str | None = None) -> Schema:
    """The schema of a table whose columns are all numbers; their names, and no value, are read."""
    names = column_names(raw)
    for name in (*label, *(() if without is None else (without,))):
        if name not in names:
            source = f" in {raw}" if isinstance(raw, Path) else ""
            raise CloisterError(f"Expected a column {name!r}{source}, found none: {_remedy(name, names, without)}.")
    columns = {name: Column(name, {"kind": "number"}) for name in names if name != without}
    return Schema(columns=columns, label=tuple(label), client=without, missing=())


def _remedy(name: str, names: Sequence[str], client: str | None) -> str:
    """A name that is nearly the same, or else how to say which column is meant."""
    close = difflib.get_close_matches(name.lower(), [one.lower() for one in names], n=1, cutoff=0.75)
    if close:
        return nearest(next(one for one in names if one.lower() == close[0]), names)
    said = "name the column with client=NAME" if name == client else "name the column with label=NAME"
    return separator_remedy(names) or f"{said}, or declare the columns in a schema (schema=FILE)"


def column_names(raw: Any) -> list[str]:
    """The names of the columns of a file or a frame."""
    if not isinstance(raw, Path):
        return frame_columns(raw)
    with readable(raw):
        if raw.suffix == ".npz":
            with np.load(raw, allow_pickle=False) as data:
                return list(data.files)
        if raw.suffix == ".parquet":
            from pyarrow import parquet

            return list(parquet.read_schema(raw).names)
        return CsvText.open(raw, Layout()).names


def read_arrays(file: Path) -> tuple[Array, Array]:
    """The arrays `inputs` and `labels` of an .npz file."""
    with readable(file), np.load(file, allow_pickle=False) as data:
        found = {name: data[name] for name in data.files}
    if not {"inputs", "labels"} <= set(found):
        raise CloisterError(
            f"Expected the arrays inputs and labels in {file}, found {', '.join(found) or 'nothing'}: rename them."
        )
    x, y = found["inputs"], found["labels"]
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise CloisterError(f"Expected a label for each input, found {x.shape} and {y.shape} in {file}: fix it.")
    return x, y


def expect_alike(parts: Sequence[tuple[Path, Array, Array]]) -> None:
    """One client's file must not decide of which shape and type everybody's numbers are."""
    for file, *mine in parts:
        for what, own, first in zip(("inputs", "labels"), mine, parts[0][1:], strict=True):
            if own.shape[1:] != first.shape[1:]:
                raise CloisterError(
                    f"Expected every client's {what} to have shape {first.shape[1:]} like the first one's, found "
                    f"{own.shape[1:]} in {file}: fix that file."
                )
            if own.dtype != first.dtype and not own.dtype.kind == first.dtype.kind == "f":
                raise CloisterError(
                    f"Expected every client's {what} to be {first.dtype} like the first one's, found {own.dtype} in "
                    f"{file}: convert them."
                )


def as_classes(schema: Schema, table: Table, labels: Array) -> Array:
    """A table's labels as whole numbers, which all have to be."""
    with np.errstate(invalid="ignore"):
        whole: Array = labels.astype(np.int64)
    bad = np.nonzero(whole != labels)[0]
    if len(bad):
        row = int(bad[0])
        remedy = "number the classes from 0, declare the label in a schema, or give a loss for numbers"
        found = labels[row].tolist()
        table.refuse(", ".join(schema.label), row, "labels to be whole numbers", found, remedy)
    return whole
