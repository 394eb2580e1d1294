"""Tasks from tables: a folder with a file per client, one file with a column of clients, a frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cloister.client.losses import Loss, LossFunction, cross_entropy, loss_of
from cloister.data.raw import Array
from cloister.data.splits import by_owner, held_out
from cloister.data.task import Task, from_arrays
from cloister.data.user.cells import text_of
from cloister.data.user.encoding import Group
from cloister.data.user.labels import class_names, expect_intervals_used, loss_for
from cloister.data.user.plain_tables import as_classes, expect_alike, plain_schema, read_arrays
from cloister.data.user.schema import Schema
from cloister.data.user.schema_files import schema_of
from cloister.data.user.tables import Table, client_files, read_file, read_files, read_frame
from cloister.errors import CloisterError, expect, note

AnySchema = Schema | Mapping[str, Any] | str | Path
AnyLoss = Loss | LossFunction | str


def from_folder(
    folder: str | Path, *, schema: AnySchema | None = None, label: str | Sequence[str] | None = None, **options: Any
) -> Task:
    """A task from a folder with one file per client: .csv, .parquet or .npz; the file's name is the client's.

    `schema` says what columns are (`cloister.data.Schema`, a dict, or the path of a TOML file). Without one, columns
    are numbers, taken as they are, and labels are whole numbers where the loss or `classes` says so; an .npz then
    holds `inputs` and `labels`. Columns are matched by name. `options`: test_fraction, loss, classes, intervals,
    public_samples, and those of `from_arrays`.
    """
    expect(isinstance(folder, (str, Path)), "folder to be a path", folder, "name the folder with the clients' files")
    path = Path(folder)
    known, plain = None if schema is None else _labeled(schema_of(schema), label), _plain_label(label)
    files = client_files(path, known.files if known else None)
    options = {"name": path.name, "registered": [client for client, _ in files], **options}
    if known is None:
        return _plain_task(files, plain, options)
    layout = known.layout(labels=True)
    tables = read_files([file for _, file in files], layout)
    return _made(
        known, [(table, np.full(table.rows, client)) for (client, _), table in zip(files, tables, strict=True)], options
    )


def from_file(
    path: str | Path,
    *,
    schema: AnySchema | None = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    **options: Any,
) -> Task:
    """A task from one .csv, .parquet or .npz file, in which the column `client` says whose each row is.

    `schema` and `options` as in `from_folder`.
    """
    expect(isinstance(path, (str, Path)), "path to be that of a file", path, "name the file with all clients' rows")
    file = Path(path)
    known, owner = _for_one_table(schema, client, label, lambda who, what: plain_schema(file, what, without=who))
    return _split_task(known, read_file(file, known.layout(True, owner)), owner, {"name": file.stem, **options}, schema)


def from_frame(
    frame: Any,
    *,
    schema: AnySchema | None = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    **options: Any,
) -> Task:
    """A task from a pandas, polars or pyarrow frame, or a dict of columns; `client` says whose each row is.

    `schema` and `options` as in `from_folder`.
    """
    known, owner = _for_one_table(schema, client, label, lambda who, what: plain_schema(frame, what, without=who))
    return _split_task(known, read_frame(frame, known.layout(True, owner)), owner, {"name": "frame", **options}, schema)


def _for_one_table(schema: AnySchema | None, client: str | None, label: Any, plain: Any) -> tuple[Schema, str]:
    """The schema of a table of many clients, and the column that tells them apart."""
    expect(client is None or isinstance(client, str), "client to be the name of a column", client, "name one")
    known = None if schema is None else _labeled(schema_of(schema), label)
    owner = client or (known.client if known else None)
    if owner is None:
        raise CloisterError(
            "Expected the column that says whose each row is, found none: say client = ..., or give a folder with a "
            "file per client."
        )
    if known is None:
        return plain(owner, _plain_label(label)), owner
    expect(owner not in known.label, "client and label to be different columns", owner, "name another")
    return replace(known, client=owner), owner


def _labeled(schema: Schema, label: str | Sequence[str] | None) -> Schema:
    return schema if label is None else schema.with_label(label)


def _plain_label(label: Any) -> tuple[str, ...]:
    several = ("label",) if label is None else (label,) if isinstance(label, str) else label
    fine = isinstance(several, (tuple, list)) and all(isinstance(name, str) for name in several)
    expect(fine and len(several) > 0, "label to be the name of a column", label, "name the one with the labels")
    return tuple(several)


def _split_task(known: Schema, table: Table, owner: str, options: dict[str, Any], schema: object) -> Task:
    """A task from one table of many clients; only the names of clients decide whose a row is."""
    cells = table.cells(owner)
    gaps = np.flatnonzero(cells.codes < 0)
    words = [text_of(value) for value in cells.values]
    bad = [number for number, word in enumerate(words) if word in known.missing]
    row = int(gaps[0]) if len(gaps) else cells.first_row(bad[0]) if bad else None
    if row is not None:
        table.refuse(owner, row, "a client's name", None, "every row is somebody's")
    owners = np.array([*words, ""], dtype=str)[cells.codes]
    if schema is None:
        return _plain_arrays(known, [(table, owners)], options)
    return _made(known, [(table, owners)], options)


def _made(schema: Schema, parts: Sequence[tuple[Table, Array]], options: dict[str, Any]) -> Task:
    """The task of tables whose rows' owners are known."""
    loss = loss_for(schema, options.pop("loss", None), options.pop("intervals", None))
    options = with_test(options, schema)
    inputs, labels = [], []
    for table, owners in parts:
        groups = _groups(owners, options) if schema.prepared_by == "client" else None
        inputs.append(schema.features(table, groups))
        labels.append(schema.label_values(table))
    names = () if options.get("classes") is not None and not loss.classes else class_names(schema)
    task = from_arrays(
        np.concatenate(inputs),
        np.concatenate(labels),
        np.concatenate([owners for _, owners in parts]),
        **{"class_names": names, "encoder": schema, **options, "loss": loss},
    )
    _note_unscaled(schema)
    return replace(task, prepared_by=schema.prepared_by)


def _note_unscaled(schema: Schema) -> None:
    """Numbers of any size are taken, though models learn from numbers around 0."""
    plain = [one.name for one in schema.feature_columns if one.kind == "number" and not one.is_scaled]
    if plain:
        names = ", ".join(plain[:5]) + (f" and {len(plain) - 5} more" if len(plain) > 5 else "")
        remedy = "declare a range (or center and scale) in the schema, or use standardize"
        note(f"unscaled numbers are used as they are ({names}): {remedy}.")


def _groups(owners: Array, options: Mapping[str, Any]) -> list[Group]:
    """Every client's rows, and those that it trains on: the same that `from_arrays` does not hold out."""
    test, seed = options.get("test", 0.2), options.get("seed", 0)
    share = float(test) if isinstance(test, (float, np.floating)) else 0.0
    return [(rows, rows[~held_out(owner, len(rows), int(seed), share)]) for owner, rows in by_owner(owners)]


def with_test(options: Mapping[str, Any], schema: Schema | None = None) -> dict[str, Any]:
    """The options with `test_fraction` as `from_arrays` calls it, and with a test set that is a table encoded."""
    made = dict(options)
    fraction = made.pop("test_fraction", None)
    if fraction is not None:
        expect("test" not in made, "test_fraction or test", "both", "give one of them")
        made["test"] = fraction
    test = made.get("test", 0.2)
    if schema is not None and not isinstance(test, (float, int, tuple, list, np.floating)):
        (table,) = schema.tables(test, labels=True)
        made["test"] = (schema.features(table), schema.label_values(table))
    return made


def _plain_task(files: Sequence[tuple[str, Path]], label: tuple[str, ...], options: dict[str, Any]) -> Task:
    """Without a schema: numbers as they are, from tables or from arrays."""
    tables = [file for _, file in files if file.suffix != ".npz"]
    schema = plain_schema(tables[0], label) if tables else None
    arrays: list[tuple[Path, Array, Array, Array]] = []
    loss, options = _plain_loss(options)
    for client, file in files:
        if file.suffix == ".npz":
            x, y = read_arrays(file)
        else:
            assert schema is not None
            table = read_file(file, schema.layout(labels=True))
            x, y = schema.features(table), _plain_labels(schema, table, loss, options)
        arrays.append((file, x, y, np.full(len(x), client)))
    some = [part for part in arrays if len(part[1])] or arrays  # an empty file has no type
    expect_alike([(file, x, y) for file, x, y, _ in some])
    x, y, owners = (np.concatenate([part[number] for part in some]) for number in (1, 2, 3))
    return from_arrays(x, y, owners, **{"encoder": schema, **options, "loss": loss})


def _plain_arrays(schema: Schema, parts: Sequence[tuple[Table, Array]], options: dict[str, Any]) -> Task:
    loss, options = _plain_loss(options)
    x = np.concatenate([schema.features(table) for table, _ in parts])
    y = np.concatenate([_plain_labels(schema, table, loss, options) for table, _ in parts])
    owners = np.concatenate([owners for _, owners in parts])
    return from_arrays(x, y, owners, **{"encoder": schema, **options, "loss": loss})


def _plain_loss(options: dict[str, Any]) -> tuple[Loss, dict[str, Any]]:
    made = with_test(options)
    loss, intervals = made.pop("loss", None), made.pop("intervals", None)
    expect_intervals_used(intervals, loss == "hazards")
    settings = {} if intervals is None else {"intervals": intervals}
    return loss_of(cross_entropy if loss is None else loss, **settings), made


def _plain_labels(schema: Schema, table: Table, loss: Loss, options: Mapping[str, Any]) -> Array:
    """What labels are is declared, not guessed: whole numbers where the loss or `classes` says so, else fractions."""
    labels = schema.label_values(table)
    return as_classes(schema, table, labels) if loss.classes or options.get("classes") is not None else labels
