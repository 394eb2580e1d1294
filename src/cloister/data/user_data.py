"""Bring your own: tasks from a folder with a file per client, and from a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.client.losses import cross_entropy
from cloister.data.raw import Array
from cloister.data.task import Task, from_arrays
from cloister.errors import CloisterError, Corrupted, expect, nearest


def from_folder(folder: str | Path, *, label: str = "label", **options: Any) -> Task:
    """A task from a folder with one file per client: .npz, .csv or .parquet; the file's name is the client's.

    An .npz holds `inputs` and `labels`; a .csv or .parquet holds numeric columns, one of which is `label`. All
    clients have the same columns in the same order and the same types. What labels are is declared, not guessed: whole
    numbers where the loss is cross-entropy or `classes` is given, else fractions. `options` go to `from_arrays` (test,
    public, model, loss, ...).
    """
    expect(isinstance(folder, (str, Path)), "folder to be a path", folder, "name the folder with the clients' files")
    expect(isinstance(label, str), "label to be the name of a column", label, "name the one with the labels")
    path = Path(folder)
    files = sorted(file for file in path.glob("*") if file.suffix in _READERS) if path.is_dir() else []
    if not files:
        raise CloisterError(f"Expected .npz, .csv or .parquet files in {path}, found none: put one there per client.")
    _expect_one_file_each(path, [file.stem for file in files])
    are_classes = options.get("loss", cross_entropy) is cross_entropy or options.get("classes") is not None
    parts, columns = [], None
    for file in files:
        x, y, names = _read(file, label)
        columns = names if columns is None else columns
        if names != columns:
            raise CloisterError(
                f"Expected the columns {', '.join(columns)} in this order in every file, found {', '.join(names)} in "
                f"{file}: bring them into the same order."
            )
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise CloisterError(f"Expected a label for each input, found {x.shape} and {y.shape} in {file}: fix it.")
        parts.append((file, x, _as_classes(file, y) if are_classes and file.suffix != ".npz" else y))
    some = [part for part in parts if len(part[1])] or parts  # an empty file has no type
    for file, x, y in some:
        _expect_like(file, "inputs", x, some[0][1])
        _expect_like(file, "labels", y, some[0][2])
    return from_arrays(
        np.concatenate([x for _, x, _ in some]),
        np.concatenate([y for _, _, y in some]),
        np.array([file.stem for file, x, _ in some for _ in range(len(x))], dtype=str),
        **{"name": path.name, "registered": [file.stem for file in files], **options},
    )


def _expect_one_file_each(folder: Path, clients: list[str]) -> None:
    for client in clients:
        if clients.count(client) > 1:
            raise CloisterError(f"Expected one file per client, found two for {client!r} in {folder}: rename one.")


def _expect_like(file: Path, what: str, mine: Array, first: Array) -> None:
    """One client's file must not decide of which shape and type everybody's numbers are."""
    if mine.shape[1:] != first.shape[1:]:
        raise CloisterError(
            f"Expected every client's {what} to have shape {first.shape[1:]} like the first one's, found "
            f"{mine.shape[1:]} in {file}: fix that file."
        )
    same = mine.dtype == first.dtype or (mine.dtype.kind == first.dtype.kind == "f")
    if not same:
        raise CloisterError(
            f"Expected every client's {what} to be {first.dtype} like the first one's, found {mine.dtype} in {file}: "
            "convert them."
        )


def _as_classes(file: Path, labels: Array) -> Array:
    """A table's labels as whole numbers, which all have to be."""
    with np.errstate(invalid="ignore"):
        whole: Array = labels.astype(np.int64)
    bad = np.flatnonzero(whole != labels)
    if len(bad):
        raise CloisterError(
            f"Expected labels to be whole numbers, found {labels[bad[0]]:g} in sample {int(bad[0])} of {file}: number "
            "the classes from 0, or give a loss of your own."
        )
    return whole


Columns = list[str]


def _read(file: Path, label: str) -> tuple[Array, Array, Columns]:
    """A client's inputs and labels, and the names of its columns; a damaged file is one sentence."""
    try:
        return _READERS[file.suffix](file, label)
    except CloisterError:
        raise
    except (Exception, MemoryError) as error:  # a damaged file may fail in any way at all
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Corrupted(
            f"Expected a readable {file.suffix} file, found {file} damaged ({reason}): write it again."
        ) from error


def from_dataset(
    dataset: Any, *, client: str, label: str = "label", inputs: str | Sequence[str] | None = None, **options: Any
) -> Task:
    """A task from a Hugging Face `datasets.Dataset` (or anything with `column_names` and `dataset[column]`).

    `client` names the column that tells clients apart. `inputs` names the input column, or several numeric ones
    that are stacked; by default all but client and label. Images become arrays with channels first. `options` go to
    `from_arrays` (test, public, model, loss, ...).
    """
    if not hasattr(dataset, "column_names") or not hasattr(dataset, "__getitem__"):
        raise CloisterError(
            f"Expected a data set with columns, found {type(dataset).__name__}: give a datasets.Dataset, or use "
            "from_arrays."
        )
    several = inputs is None or isinstance(inputs, Sequence)
    expect(several, "inputs to name columns", inputs, "give one name, or a list of them")
    columns = list(dataset.column_names)
    chosen = [inputs] if isinstance(inputs, str) else list(inputs or [c for c in columns if c not in (client, label)])
    expect(bool(chosen), "a column of inputs", columns, "name it with inputs = ...")
    for column in (client, label, *chosen):
        expect(isinstance(column, str), "the name of a column", column, "columns are chosen by name")
        if column not in columns:
            raise CloisterError(f"Expected a column {column!r}, found none: {nearest(column, columns)}.")
    parts = [_column(column, dataset[column]) for column in chosen]
    if len(parts) > 1:
        for column, part in zip(chosen, parts, strict=True):
            expect(part.ndim == 2, "columns of numbers to stack", f"{part.ndim - 1} dimensions in {column}", "name one")
        parts = [np.concatenate([part.astype(np.float32) for part in parts], axis=1)]
    return from_arrays(parts[0], dataset[label], dataset[client], **options)


def _column(name: str, values: Any) -> Array:
    """A column as an array; pictures as bytes with channels first. Every row has the first one's shape and type."""
    rows = [np.asarray(value) for value in values]
    expect(bool(rows), "at least one sample", 0, "give some data")
    for number, row in enumerate(rows):
        numbers = row.dtype.kind in "iufb"
        expect(numbers, f"numbers in {name}", f"{row.dtype} in row {number}", "encode words as numbers")
        same = row.shape == rows[0].shape and row.dtype.kind == rows[0].dtype.kind
        like, found = (f"{one.dtype} of shape {one.shape}" for one in (rows[0], row))
        expect(same, f"{name} to be {like} like its first row", f"{found} in row {number}", "make rows alike")
    array = np.stack(rows)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return array[:, None] if array.ndim == 3 else np.ascontiguousarray(np.moveaxis(array, -1, 1))
    array = array[:, None] if array.ndim == 1 else array
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _read_npz(file: Path, label: str) -> tuple[Array, Array, Columns]:
    with np.load(file, allow_pickle=False) as data:
        found = {name: data[name] for name in data.files}
    if not {"inputs", "labels"} <= set(found):
        raise CloisterError(
            f"Expected the arrays inputs and labels in {file}, found {', '.join(found) or 'nothing'}: rename them."
        )
    return found["inputs"], found["labels"], []


def _read_csv(file: Path, label: str) -> tuple[Array, Array, Columns]:
    lines = file.read_text(encoding="utf-8-sig").splitlines()
    names = [name.strip().strip('"') for name in (lines or [""])[0].split(",")]
    try:
        rows = [[float(cell) for cell in line.split(",")] for line in lines[1:] if line.strip()]
    except ValueError as error:
        raise CloisterError(f"Expected numbers in {file}, found something else ({error}): encode it.") from None
    ragged = [number for number, row in enumerate(rows, start=2) if len(row) != len(names)]
    if ragged:
        raise CloisterError(
            f"Expected {len(names)} cells in a row of {file}, found others in line {ragged[0]}: fix it."
        )
    return _split_columns(file, names, np.array(rows).reshape(len(rows), len(names)), label)


def _read_parquet(file: Path, label: str) -> tuple[Array, Array, Columns]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise CloisterError(
            f"Expected pyarrow to read {file}, found none: pip install 'cloister[parquet]', or use .npz."
        ) from None
    table = parquet.read_table(file)
    columns = [np.asarray(column.to_numpy(), dtype=np.float64) for column in table.columns]
    return _split_columns(file, list(table.column_names), np.stack(columns, axis=1), label)


def _split_columns(file: Path, names: list[str], table: Array, label: str) -> tuple[Array, Array, Columns]:
    if label not in names:
        raise CloisterError(f"Expected a column {label!r} in {file}, found none: {nearest(label, names)}.")
    where = names.index(label)
    return np.delete(table, where, axis=1).astype(np.float32), table[:, where], names


_READERS: dict[str, Callable[[Path, str], tuple[Array, Array, Columns]]] = {
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
