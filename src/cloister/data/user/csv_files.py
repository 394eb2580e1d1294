"""CSV files. pandas' parser makes the numbers where it can; where it cannot, cells are read as text, one by one.

pandas is lenient: a row that is too short is filled up without a word. So the cells of every row are counted first. It
also takes its time to begin: small files with the same columns are read together.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from cloister.data.raw import Array
from cloister.data.user.cells import Cells, cells_of
from cloister.data.user.csv_text import CsvText
from cloister.data.user.tables import Layout, Table, readable
from cloister.errors import CloisterError

Columns = dict[str, Array | Cells]

TOGETHER = 2**22
"""Characters that are read in one go; more are no faster."""


def read_csvs(paths: Sequence[Path], layout: Layout) -> list[Table]:
    """The wanted columns of CSV files, of each as if it were the only one."""
    opened: list[CsvText] = []
    found: list[Table] = []
    for path in paths:
        with readable(path):
            opened.append(CsvText.open(path, layout))
            layout.select(opened[-1].names, str(path))
        if sum(len(one.text) for one in opened) > TOGETHER:
            found += _read(opened, layout)
            opened = []
    return found + _read(opened, layout)


def _read(opened: Sequence[CsvText], layout: Layout) -> list[Table]:
    """Files that can be read together are; a cell that cannot be read is then looked for in each by itself."""
    found: list[Table] = []
    for (_, even), group in groupby(opened, lambda one: (one.names, one.even_rows is not None)):
        some = list(group)
        parts = _together(some, layout) if even else None
        for number, one in enumerate(some):
            with readable(one.path):
                columns = parts[number] if parts else _by_cell(one, layout)
            found.append(_table(one, columns, layout))
    return found


def _table(one: CsvText, columns: Columns, layout: Layout) -> Table:
    first = next(iter(columns.values()))
    rows = len(first.codes if isinstance(first, Cells) else first)
    path = one.path
    return Table(columns, rows, str(path), lambda row: f"line {_line(path, layout, row)} of {path}")


def _line(path: Path, layout: Layout, row: int) -> int:
    """In which line of a file a row stands; the text is read again, for only whoever made a mistake needs it."""
    return next(line for number, (line, _) in enumerate(CsvText.open(path, layout).rows()) if number == row)


def _together(some: Sequence[CsvText], layout: Layout) -> list[Columns] | None:
    """The columns of each of these files; None where pandas finds something that is no number."""
    lengths = [one.even_rows or 0 for one in some]
    try:
        arrays = _by_pandas(some[0], "".join(one.body for one in some), layout)
    except (ValueError, TypeError, OverflowError):
        if len(some) == 1:
            return None
        alone = [_together([one], layout) for one in some]
        return [parts[0] if parts else _by_cell(one, layout) for one, parts in zip(some, alone, strict=True)]
    if {len(array) for array in arrays.values()} != {sum(lengths)}:
        return None  # it counts rows otherwise than we do
    cuts = np.cumsum(lengths)[:-1]
    split = {name: np.split(array, cuts) for name, array in arrays.items()}
    return [
        {name: parts[at] if name in layout.numbers else cells_of(parts[at]) for name, parts in split.items()}
        for at in range(len(some))
    ]


def _by_pandas(table: CsvText, body: str, layout: Layout) -> dict[str, Array]:
    import pandas as pd

    names, wanted = table.names, layout.select(table.names, str(table.path))
    # Columns by number: pandas takes longer to make names for a small file than to read it.
    places = [names.index(name) for name in wanted]
    numbers = all(name in layout.numbers for name in wanted)
    kinds = {at: _NUMBER if name in layout.numbers else _TEXT for name, at in zip(wanted, places, strict=True)}
    try:
        frame = pd.read_csv(
            io.StringIO(body),
            sep=layout.separator,
            header=None,
            usecols=None if len(wanted) == len(names) else places,
            dtype=_NUMBER if numbers else kinds,
            na_values=list(layout.missing),
            keep_default_na=False,
            skipinitialspace=True,
            low_memory=False,
        )
    except pd.errors.EmptyDataError:
        return {name: np.empty(0) for name in wanted}
    if numbers:
        arrays = dict(zip(sorted(places), frame.to_numpy().T, strict=True))
    else:
        arrays = {at: frame[at].to_numpy() for at in places}
    return {name: arrays[at] for name, at in zip(wanted, places, strict=True)}


_NUMBER, _TEXT = np.dtype(np.float64), np.dtype(object)


def _by_cell(table: CsvText, layout: Layout) -> Columns:
    """All cells as they are written; a row that is too short or too long is refused, and its line named."""
    rows, names = [], table.names
    for line, row in table.rows():
        if len(row) != len(names):
            raise CloisterError(
                f"Expected {len(names)} cells in a row of {table.path}, found {len(row)} in line {line}: fix that line."
            )
        rows.append(row)
    places = {name: names.index(name) for name in layout.select(names, str(table.path))}
    return {name: cells_of(np.array([row[at] for row in rows], dtype=object)) for name, at in places.items()}
