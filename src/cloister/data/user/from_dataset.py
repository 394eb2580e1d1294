"""Tasks from data sets in Python: Hugging Face's, and any with a length and samples by number, as torch has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cloister.data.raw import Array
from cloister.data.task import Task, from_arrays
from cloister.data.user.from_tables import AnySchema, from_frame, with_test
from cloister.data.user.schema_files import schema_of
from cloister.errors import CloisterError, expect, nearest


def from_dataset(
    dataset: Any,
    *,
    client: str | None = None,
    clients: Any = None,
    label: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
    schema: AnySchema | None = None,
    **options: Any,
) -> Task:
    """A task from a Hugging Face `datasets.Dataset`, or from a torch `Dataset`.

    Hugging Face (or anything with `column_names` and `dataset[column]`): `client` names the column that tells clients
    apart. `inputs` names the input column, or several numeric ones that are stacked; by default all but client and
    label. Images become arrays with channels first. With a `schema`, columns are what it says (`from_frame`).

    Torch (or anything with a length, and with pairs of input and label by number): `clients` says whose each sample is.

    `options` go to `from_arrays` (test, public_samples, model, loss, ...).
    """
    if hasattr(dataset, "column_names") and hasattr(dataset, "__getitem__"):
        expect(clients is None, "client, the name of a column", "clients", "a data set with columns has one for them")
        if schema is not None:
            known = schema_of(schema)
            wanted = [name for name in dataset.column_names if name in {*known.columns, known.client, client}]
            names = wanted if known.extra == "ignore" else dataset.column_names
            frame = {name: list(dataset[name]) for name in names}
            return from_frame(frame, schema=known, client=client, label=label, **{"name": "dataset", **options})
        return _from_columns(dataset, client, "label" if label is None else label, inputs, options)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__") or clients is None:
        raise CloisterError(
            f"Expected a data set with columns, found {type(dataset).__name__}: give a datasets.Dataset, a torch "
            "Dataset with clients = ..., or use from_arrays."
        )
    expect(schema is None, "a data set with columns beside a schema", type(dataset).__name__, "leave out the schema")
    return _from_samples(dataset, clients, options)


def _from_samples(dataset: Any, clients: Any, options: dict[str, Any]) -> Task:
    """Samples by number, each a pair of input and label."""
    pairs = [dataset[number] for number in range(len(dataset))]
    expect(bool(pairs), "at least one sample", 0, "give some data")
    for number, pair in enumerate(pairs):
        fine = isinstance(pair, (tuple, list)) and len(pair) == 2
        expect(
            fine, "samples that are pairs (input, label)", f"{type(pair).__name__} in sample {number}", "return both"
        )
    # Arrays and tensors have their channels where they have them; pictures of PIL have them last.
    pictures = not hasattr(pairs[0][0], "dtype")
    x = _column("inputs", [pair[0] for pair in pairs], pictures)
    y = _column("labels", [pair[1] for pair in pairs], pictures=False)
    labels = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return from_arrays(x, labels, clients, **{"name": type(dataset).__name__, **with_test(options)})


def _from_columns(dataset: Any, client: Any, label: Any, inputs: Any, options: dict[str, Any]) -> Task:
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
    return from_arrays(parts[0], dataset[label], dataset[client], **with_test(options))


def _column(name: str, values: Any, pictures: bool = True) -> Array:
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
    if pictures and array.dtype == np.uint8 and array.ndim in (3, 4):
        return array[:, None] if array.ndim == 3 else np.ascontiguousarray(np.moveaxis(array, -1, 1))
    array = array[:, None] if array.ndim == 1 else array
    return array.astype(np.float32) if array.dtype == np.float64 else array
