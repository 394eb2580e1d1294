"""CSV files. pandas' parser makes the numbers where it can; where it cannot, cells are read as text, one by one.

pandas is lenient: a row that is too short is filled up without a word. So the cells of every row are counted first.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cloister.data.raw import Array
from cloister.data.user.cells import Cells, cells_of
from cloister.data.user.tables import Layout, Table, expect_different
from cloister.errors import CloisterError


def read_csv(path: Path, layout: Layout) -> Table:
    """The wanted columns of a CSV file."""
    text = _text(path)
    names, skipped = _header(path, text, layout)
    wanted = layout.select(names, str(path))
    if _is_even(text, layout.separator, len(names), skipped):
        try:
            columns = _by_pandas(text, names, wanted, layout, skipped)
        except (ValueError, TypeError, OverflowError):  # something that is no number, or no CSV
            columns = _by_cell(path, text, names, wanted, layout, skipped)
    else:
        columns = _by_cell(path, text, names, wanted, layout, skipped)
    rows = max((_length(column) for column in columns.values()), default=0)
    return Table(columns, rows, str(path), lambda row: f"line {_line(path, layout, row)} of {path}")


def header_of(path: Path, layout: Layout) -> list[str]:
    """The names of a file's columns."""
    return _header(path, _text(path), layout)[0]


def first_row(path: Path) -> list[str]:
    """The cells of a file's first row."""
    return [cell.strip() for cell in next(_rows(path, _text(path), ","))[1]]


def _text(path: Path) -> str:
    data = path.read_bytes()
    if not data.strip():
        raise CloisterError(f"Expected a table in {path}, found an empty file: remove it, or give it a header.")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise CloisterError(
            f"Expected text in {path}, found binary data in line {line}: save the table as CSV in UTF-8."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CloisterError(
            f"Expected UTF-8 in {path}, found the byte {data[error.start]:#04x} in line {line}: save it as UTF-8."
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the number of the line in which it ends."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, row
    except csv.Error as error:
        raise CloisterError(
            f"Expected CSV in {path}, found an error in line {reader.line_num} ({error}): check its quotes."
        ) from None


def _header(path: Path, text: str, layout: Layout) -> tuple[list[str], int]:
    """The names of the columns, and how many lines they take."""
    line, row = next(_rows(path, text, layout.separator))
    if layout.headers:
        fitting = next((list(names) for names in layout.headers if len(names) == len(row)), None)
        if fitting is None:
            raise CloisterError(
                f"Expected {len(layout.headers[0])} cells in a row of {path}, as the schema has columns, found "
                f"{len(row)} in line {line}: fix the file or the schema."
            )
        return fitting, 0
    names = [name.strip() for name in row]
    unnamed = [number for number, name in enumerate(names, start=1) if not name]
    if unnamed:
        raise CloisterError(f"Expected a name for every column of {path}, found none for column {unnamed[0]}: add it.")
    expect_different(names, str(path))
    return names, line


def _is_even(text: str, separator: str, width: int, skipped: int) -> bool:
    """Whether all rows have so many cells; with quotes about, which may hide separators, rows are read one by one."""
    if '"' in text:
        rows = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
        try:
            return all(len(row) in (0, width) for row in rows)
        except csv.Error:
            return False
    characters = np.frombuffer(text.encode(), dtype=np.uint8)
    starts = np.append(0, np.flatnonzero(characters == ord("\n")) + 1)
    starts = starts[starts < len(characters)]
    separators = np.add.reduceat((characters == ord(separator)).view(np.uint8), starts, dtype=np.int64)
    blank = characters[starts] == ord("\n")
    return bool((blank | (separators == width - 1))[skipped:].all())


def _by_pandas(
    text: str, names: list[str], wanted: list[str], layout: Layout, skipped: int
) -> dict[str, Array | Cells]:
    import pandas as pd

    kinds = {name: "float64" if name in layout.numbers else "object" for name in wanted}
    try:
        frame = pd.read_csv(
            io.StringIO(text),
            sep=layout.separator,
            header=None,
            names=names,
            usecols=wanted,
            skiprows=skipped,
            dtype=kinds,
            na_values={name: list(layout.missing.get(name, ())) for name in wanted if name in layout.numbers},
            keep_default_na=False,
            skipinitialspace=True,
            index_col=False,
            low_memory=False,
        )
    except pd.errors.EmptyDataError:
        return {name: np.empty(0) for name in wanted}
    arrays = {name: frame[name].to_numpy() for name in wanted}
    return {name: array if name in layout.numbers else cells_of(array) for name, array in arrays.items()}


def _by_cell(
    path: Path, text: str, names: list[str], wanted: list[str], layout: Layout, skipped: int
) -> dict[str, Array | Cells]:
    """All cells as they are written; a row that is too short or too long is refused, and its line named."""
    rows = []
    for line, row in _rows(path, text, layout.separator):
        if line <= skipped:
            continue
        if len(row) != len(names):
            raise CloisterError(
                f"Expected {len(names)} cells in a row of {path}, found {len(row)} in line {line}: fix that line."
            )
        rows.append(row)
    places = {name: names.index(name) for name in wanted}
    return {name: cells_of(np.array([row[at] for row in rows], dtype=object)) for name, at in places.items()}


def _length(column: Array | Cells) -> int:
    return len(column.codes if isinstance(column, Cells) else column)


def _line(path: Path, layout: Layout, row: int) -> int:
    """In which line of a file a row stands."""
    text = _text(path)
    _, skipped = _header(path, text, layout)
    lines = (line for line, _ in _rows(path, text, layout.separator) if line > skipped)
    return next(line for number, line in enumerate(lines) if number == row)
