"""A schema: what the columns of a table are, declared in advance. It turns raw rows into inputs and labels.

Nothing in it is computed from data, so that it can be public and costs no privacy.

    label = "num"
    [columns.age]
    kind = "number"
    range = [20, 90]
    fill = 55
    [columns.num]
    kind = "category"
    categories = {healthy = ["0"], sick = ["1", "2", "3", "4"]}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cloister.client.losses import CATALOGUE
from cloister.data.raw import Array
from cloister.data.user import encoding
from cloister.data.user.cells import MISSING, number_of, text_of
from cloister.data.user.columns import CLIENT_FILLS, Column
from cloister.data.user.encoding import Group
from cloister.data.user.tables import Layout, Table, client_files, read_files, read_frame, separator_remedy
from cloister.errors import CloisterError, expect, expect_one_of, nearest, shown


@dataclass(frozen=True, repr=False)
class Schema:
    """What the columns of a table are, and which of them is the label.

    Columns are found by their names, in whatever order a file has them. A column that is not declared is an error
    unless extra = "ignore"; one that is declared has to be there. Raw rows to predict from may lack labels, and
    may have other columns, which are passed over.
    """

    columns: Mapping[str, Column]
    label: tuple[str, ...] = ()
    client: str | None = None
    """The column that says whose a row is, in one file of many clients."""
    header: bool = True
    """Whether files begin with the names of their columns; without, columns are those declared, in that order."""
    files: str | None = None
    """Which files of a folder are clients': a pattern whose * stands for the client's name."""
    missing: tuple[str, ...] = MISSING
    """Cells that say nothing, in every column: by default empty ones, ?, -, --, NA, N/A, n/a, NaN, nan, null, NULL,
    None and none. Where such a word is a declared category, it is that."""
    extra: Literal["error", "ignore"] = "error"
    separator: str = ","
    loss: str | None = None
    intervals: tuple[float, ...] = ()
    """The ends of intervals, for survival."""
    _layouts: dict[tuple[bool, str | None], Layout] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        """One line; `to_toml` has all of it."""
        label = ", ".join(self.label) or "none"
        return f"<Schema: {len(self.columns)} columns, label {label}, {len(self.feature_names)} features>"

    def __post_init__(self) -> None:
        made = self.columns
        expect(isinstance(made, Mapping), "columns to be tables by name", made, "write [columns.age], for one")
        expect(all(isinstance(name, str) and name for name in made), "columns with names", list(made), "name them")
        columns = {name: one if isinstance(one, Column) else Column(name, one) for name, one in made.items()}
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "label", _names(self.label))
        words = isinstance(self.missing, (list, tuple)) and all(
            isinstance(word, (str, int, float)) for word in self.missing
        )
        expect(words, "missing to be a list of cells", self.missing, 'such as ["?", "", "NA"]')
        object.__setattr__(self, "missing", tuple(text_of(word) for word in self.missing))
        _check(self)
        object.__setattr__(self, "intervals", tuple(map(float, self.intervals)))

    @property
    def feature_columns(self) -> list[Column]:
        """The columns that become inputs."""
        apart = {*self.label, self.client}
        return [column for name, column in self.columns.items() if name not in apart and column.kind != "ignore"]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What inputs are called."""
        return tuple(name for column in self.feature_columns for name in column.feature_names)

    @property
    def prepared_by(self) -> Literal["sample", "client"]:
        """Whether a row is made of itself alone, or of its client's rows as well."""
        own = any(column.get("fill") in CLIENT_FILLS for column in self.feature_columns)
        return "client" if own else "sample"

    def encode(self, raw: Any) -> Tensor:
        """The inputs of raw rows: a path of a file or a folder, a frame, or a dict of columns; labels may be missing.

        Where a fill is a client's own statistic, every file, frame or dict counts as one client's.
        """
        found = [self.features(table) for table in self.tables(raw)]
        return torch.from_numpy(np.concatenate(found))

    def labels(self, raw: Any) -> Tensor | None:
        """The labels of raw rows; None where their columns are absent."""
        tables = list(self.tables(raw))
        if not self.label or not any(set(self.label) & set(table.columns) for table in tables):
            return None
        return torch.from_numpy(np.concatenate([self.label_values(table) for table in tables]))

    def tables(self, raw: Any, labels: bool = False, client: str | None = None) -> list[Table]:
        """The tables that lie at a path, or that a frame is; with `labels`, they must have some."""
        layout = self.layout(labels, client)
        if not isinstance(raw, (str, Path)):
            return [read_frame(raw, layout)]
        path = Path(raw)
        if path.is_dir():
            return read_files([file for _, file in client_files(path, self.files)], layout)
        return read_files([path], layout)

    def features(self, table: Table, groups: Sequence[Group] | None = None) -> Array:
        """The inputs of a table [n, k]; `groups` are its clients' rows, by default all of one client."""
        everything = np.arange(table.rows)
        groups = [(everything, everything)] if groups is None else groups
        parts = [encoding.features(column, table, self.missing, groups) for column in self.feature_columns]
        return np.concatenate(parts, axis=1)

    def label_values(self, table: Table) -> Array:
        """The labels of a table: [n], or [n, k] where they are several columns."""
        parts = [encoding.labels(self.columns[name], table, self.missing) for name in self.label]
        return parts[0] if len(parts) == 1 else np.stack(parts, axis=1).astype(np.float32)

    def layout(self, labels: bool, client: str | None = None) -> Layout:
        """What a reader has to know to read a client's table."""
        key = (labels, client)
        if key not in self._layouts:
            names = tuple(self.columns)
            unlabeled = tuple(name for name in names if name not in self.label)
            # What is a category somewhere is left to `encoding`, which knows the columns.
            named = [column.words for column in self.columns.values()]
            words = tuple(
                word
                for word in self.missing
                if number_of(word) is None and all(known.find(word) is None for known in named)
            )
            self._layouts[key] = Layout(
                separator=self.separator,
                headers=() if self.header else ((names,) if labels else (names, unlabeled)),
                numbers=frozenset(name for name, column in self.columns.items() if column.is_read_as_number),
                missing=words,
                select=_selector(self, labels, client),
            )
        return self._layouts[key]

    def with_label(self, label: str | Sequence[str]) -> Schema:
        """The same with another label; intervals belong to the one that was declared."""
        names = _names(label)
        return replace(self, label=names, intervals=self.intervals if len(names) == 2 else ())

    def to_dict(self) -> dict[str, Any]:
        """What was declared, as plain values."""
        plain: dict[str, Any] = {"label": self.label[0] if len(self.label) == 1 else list(self.label)}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.init and one.name not in ("columns", "label") and value != one.default:
                plain[one.name] = list(value) if isinstance(value, tuple) else value
        return {**plain, "columns": {name: dict(column.declared) for name, column in self.columns.items()}}

    def to_json(self) -> dict[str, Any]:
        """Plain values from which it can be made again (`cloister.data.encoders`).

        Columns and groups are in lists, since their order counts and that of a JSON object may get lost.
        """
        columns = [{"name": name, **column.declared} for name, column in self.columns.items()]
        for column in columns:
            if isinstance(groups := column.get("categories"), Mapping):
                column["categories"] = {"names": list(groups), "cells": list(groups.values())}
        # The words for missing cells are always said: a model means the same if others become usual one day.
        return {"kind": "table", **self.to_dict(), "missing": list(self.missing), "columns": columns}

    def to_toml(self) -> str:
        """The text of a TOML file that says the same."""
        from cloister.data.user.schema_files import toml_text

        return toml_text(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """A schema from plain values, as a TOML file has them."""
        expect(isinstance(values, Mapping), "a schema", values, "give a dict, a Schema, or the path of a TOML file")
        known = [one.name for one in fields(cls) if one.init]
        for name in values:
            if name not in known:
                raise CloisterError(f"Expected a key of a schema, found {shown(name)}: {nearest(str(name), known)}.")
        expect("columns" in values, "columns in the schema", "none", "write [columns.NAME] with a kind for each")
        return cls(**values)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schema:
        """The opposite of `to_json`."""
        columns: dict[str, dict[str, Any]] = {}
        for column in values["columns"]:
            said = {key: value for key, value in column.items() if key != "name"}
            if isinstance(groups := said.get("categories"), Mapping):
                said["categories"] = dict(zip(groups["names"], groups["cells"], strict=True))
            columns[column["name"]] = said
        rest = {name: value for name, value in values.items() if name not in ("kind", "columns")}
        return cls.from_dict({**rest, "columns": columns})

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """A schema from a TOML file."""
        from cloister.data.user.schema_files import read_toml

        return read_toml(path)


def _names(label: Any) -> tuple[str, ...]:
    several = [label] if isinstance(label, str) else label
    fine = isinstance(several, Sequence) and all(isinstance(name, str) and name for name in several)
    expect(fine, "label to be the name of a column, or a list of names", label, "name the one with the labels")
    expect(len(set(several)) == len(several), "label to name different columns", label, "name each once")
    return tuple(several)


def _check(schema: Schema) -> None:
    """Every mistake beside the columns' own."""
    for name in schema.label:
        if name not in schema.columns:
            close = nearest(name, schema.columns, "declare it, under [columns]")
            raise CloisterError(f"Expected the label {name!r} among the columns of the schema, found none: {close}.")
        expect("fill" not in schema.columns[name].declared, f"no fill for the label {name!r}", "one", "remove it")
        usable = not schema.columns[name].get("indicator") and schema.columns[name].get("unknown") != "zero"
        expect(usable, f"a label {name!r} that is always known", "indicator or unknown", "remove that")
    for key in ("client", "files"):
        value = getattr(schema, key)
        expect(value is None or (isinstance(value, str) and bool(value)), f"{key} to be a word", value, "fix it")
    clash = schema.client is not None and schema.client in schema.label
    expect(not clash, "client and label to be different columns", schema.client, "name another")
    if schema.files is not None:
        fine = schema.files.count("*") == 1 and "/" not in schema.files
        expect(fine, "files to be a pattern with one *", schema.files, 'such as "hospital-*.csv", * being the client')
    expect(isinstance(schema.header, bool), "header to be true or false", schema.header, "choose one of them")
    expect_one_of("extra", schema.extra, ("error", "ignore"))
    separator = schema.separator
    single = isinstance(separator, str) and len(separator) == 1 and separator.isascii() and separator not in '"\n\r '
    expect(single, "separator to be one character", separator, 'such as ";"')
    if schema.loss is not None:
        expect_one_of("loss", schema.loss, CATALOGUE)
    ends = schema.intervals
    listed = isinstance(ends, (list, tuple)) and all(
        isinstance(end, (int, float)) and not isinstance(end, bool) for end in ends
    )
    expect(listed, "intervals to be a list of times", ends, "give their ends, such as [365, 730]")
    expect(bool(schema.feature_columns), "a column to learn from", list(schema.columns), "declare one beside the label")


def _selector(schema: Schema, labels: bool, client: str | None) -> Callable[[Sequence[str], str], list[str]]:
    """Which columns are read: those declared, and that of the clients where one file has all of them."""
    optional = set() if labels else set(schema.label)
    wanted = [column.name for column in schema.feature_columns] + list(schema.label)

    def select(names: Sequence[str], source: str) -> list[str]:
        present = set(names)
        absent = {name for name in optional if name not in present}
        for name in wanted + ([client] if client is not None else []):
            if name not in present and not (name in optional and absent == optional):
                close = nearest(
                    name, present - set(schema.columns), "every file needs it, or remove it from the schema"
                )
                remedy = separator_remedy(names, schema.separator) or close
                raise CloisterError(f"Expected a column {name!r} in {source}, found none: {remedy}.")
        for name in names if labels else ():  # rows to predict from may have columns of other uses
            if name not in schema.columns and name not in (client, schema.client) and schema.extra == "error":
                known = ", ".join(schema.columns) if len(schema.columns) < 20 else f"{len(schema.columns)} columns"
                otherwise = 'remove it, or declare it in the schema, or say extra = "ignore" there'
                close = nearest(name, set(schema.columns) - present, otherwise)
                raise CloisterError(f"Expected {known} in {source}, found a column {name!r} as well: {close}.")
        also = [] if client is None or client in wanted else [client]
        return [name for name in wanted if name in present] + also

    return select
