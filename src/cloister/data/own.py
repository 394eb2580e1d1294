"""Bring your own: tasks from a folder with a file per client, and from a Hugging Face data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.raw import Array
from cloister.data.task import Task, from_arrays
from cloister.errors import CloisterError, Corrupted, nearest


def from_folder(folder: str | Path, *, label: str = "label", **options: Any) -> Task:
    """A task from a folder with one file per client: .npz, .csv or .parquet; the file's name is the client's.

    An .npz holds `inputs` and `labels`; a .csv or .parquet holds numeric columns, one of which is `label`. All
    clients have the same columns in the same order. `options` go to `from_arrays` (test, public, model, loss, ...).
    """
    path = Path(folder)
    files = sorted(file for file in path.glob("*") if file.suffix in _READERS) if path.is_dir() else []
    if not files:
        raise CloisterError(f"Expected .npz, .csv or .parquet files in {path}, found none: put one there per client.")
    inputs: list[Array] = []
    labels: list[Array] = []
    owners: list[str] = []
    columns: list[str] | None = None
    stems = [file.stem for file in files]
    for file in files:
        if stems.count(file.stem) > 1:
            raise CloisterError(f"Expected one file per client, found two for {file.stem!r} in {path}: rename one.")
        x, y, names = _read(file, label)
        columns = columns or names
        if names != columns:
            raise CloisterError(
                f"Expected the columns {', '.join(columns)} in this order in every file, found {', '.join(names)} in "
                f"{file}: bring them into the same order."
            )
        if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
            raise CloisterError(f"Expected a label for each input, found {x.shape} and {y.shape} in {file}: mend it.")
        if inputs and x.shape[1:] != inputs[0].shape[1:]:
            raise CloisterError(
                f"Expected every client's inputs to have shape {inputs[0].shape[1:]} like the first one's, found "
                f"{x.shape[1:]} in {file}: mend that file."
            )
        inputs.append(x)
        labels.append(y)
        owners += [file.stem] * len(x)
    return from_arrays(
        np.concatenate(inputs),
        np.concatenate(labels),
        np.array(owners),
        **{"name": path.name, "registered": len(files), **options},
    )


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
    columns = list(dataset.column_names)
    chosen = [inputs] if isinstance(inputs, str) else list(inputs or [c for c in columns if c not in (client, label)])
    for column in (client, label, *chosen):
        if column not in columns:
            raise CloisterError(f"Expected a column {column!r}, found none: {nearest(column, columns)}.")
    parts = [_column(dataset[column]) for column in chosen]
    x = parts[0] if len(parts) == 1 else np.concatenate([part.astype(np.float32) for part in parts], axis=1)
    return from_arrays(x, np.asarray(dataset[label]), np.asarray(dataset[client]), **options)


def _column(values: Any) -> Array:
    """A column as an array; pictures as bytes with channels first."""
    array = np.stack([np.asarray(value) for value in values])
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
            f"Expected {len(names)} cells in a row of {file}, found others in line {ragged[0]}: mend it."
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
    labels = table[:, where]
    if np.array_equal(labels, np.floor(labels)):
        labels = labels.astype(np.int64)
    return np.delete(table, where, axis=1).astype(np.float32), labels, names


_READERS: dict[str, Callable[[Path, str], tuple[Array, Array, Columns]]] = {
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
