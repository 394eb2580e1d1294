"""From a column's cells to numbers: features in which a row is made of its own cells, and labels.

The one exception is declared: a fill of `client_mean` or `client_median`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from cloister.data.raw import Array
from cloister.data.user.cells import DECIMAL_COMMA, Cells, Words, date_format
from cloister.data.user.columns import CLIENT_FILLS, Column
from cloister.data.user.tables import Table
from cloister.errors import MOST, closest, nearest

Group = tuple[Array, Array]
"""The rows of one client, and those of them that it trains on."""


def features(column: Column, table: Table, missing: Sequence[str], groups: Sequence[Group]) -> Array:
    """The inputs that a column becomes [n, k]; `groups` are the clients' rows, for fills that are theirs."""
    found = values(column, table, missing)
    gaps = np.isnan(found)
    if gaps.any():
        found = _filled(column, table, found, gaps, groups)
    if column.kind == "category":
        made = np.zeros((len(found), len(column.categories)), dtype=np.float32)
        known = np.flatnonzero(found >= 0)
        made[known, found[known].astype(np.int64)] = 1
    else:
        scaled = _scaled(column, found)
        huge = np.flatnonzero(np.abs(scaled) > MOST)
        if len(huge):
            remedy = "fix the cell, or declare a range, to which values are clipped"
            table.refuse(column.name, int(huge[0]), "a number of usable size", float(found[huge[0]]), remedy)
        made = scaled.astype(np.float32)[:, None]
    return np.concatenate([made, gaps[:, None]], axis=1, dtype=np.float32) if column.get("indicator") else made


def labels(column: Column, table: Table, missing: Sequence[str]) -> Array:
    """The labels that a column holds: places of categories, 0 or 1, or numbers in their own units."""
    found = values(column, table, missing)
    gaps = np.flatnonzero(np.isnan(found))
    if len(gaps):
        remedy = "remove the row, for a label cannot be filled in"
        table.refuse(column.name, int(gaps[0]), "a label", None, remedy)
    return found if column.kind == "number" else found.astype(np.int64)


def values(column: Column, table: Table, missing: Sequence[str]) -> Array:
    """A number for every cell, NaN where it is missing, -1 for a category that is unknown and may be."""
    # A word that is a declared category is one, even if it usually says that there is nothing, such as `none`.
    usual = (word for word in missing if column.words.find(word) is None)
    nothing = _nothing((*usual, *column.own_missing))
    data = table.columns[column.name]
    if not isinstance(data, Cells) and data.dtype.kind in "iuf" and column.kind == "number":
        return _numbers(column, table, data, list(nothing.by_number))
    cells = table.cells(column.name)
    found = []
    for number, cell in enumerate(cells.values):
        value = np.nan if nothing.find(cell) is not None else column.value_of(cell)
        if value is None and column.get("unknown") == "zero":
            value = -1
        if value is None:
            _refuse(column, table, cells.first_row(number), cell)
            continue
        found.append(value)
    return cells.taken(found, np.nan)


@lru_cache
def _nothing(words: tuple[str, ...]) -> Words:
    return Words([words])


def _numbers(column: Column, table: Table, data: Array, absent: Sequence[float]) -> Array:
    """Numbers that were read as such."""
    found = data.astype(np.float64)
    infinite = np.flatnonzero(np.isinf(found))
    if len(infinite):
        _refuse(column, table, int(infinite[0]), float(found[infinite[0]]))
    if absent:
        found[np.isin(found, absent)] = np.nan
    return found


def _refuse(column: Column, table: Table, row: int, cell: object) -> None:
    wanted = {"number": "a finite number", "boolean": "yes or no (true, false, 1, 0)", "date": "a date"}
    remedies = {
        "number": _number_remedy(cell),
        "boolean": 'fix it, or declare kind = "category"',
        "date": _date_remedy(column, cell),
    }
    words = [word for group in column.groups for word in group]
    known = ", ".join(words[:8]) + (", ..." if len(words) > 8 else "")
    unknown = ', or say unknown = "zero"' if column.kind == "category" else ""
    close = nearest(str(cell), words, f"add it to the categories{unknown}") if words else ""
    meant = closest(str(cell), words)
    if meant is not None and column.kind == "category":
        other = f"categories = {{{meant} = [{meant!r}, {str(cell)!r}], ...}}"
        close += f"; fix it, or let the schema take it for that ({other})"
    table.refuse(column.name, row, wanted.get(column.kind, f"one of {known}"), cell, remedies.get(column.kind, close))


def _number_remedy(cell: object) -> str:
    if isinstance(cell, str) and DECIMAL_COMMA.fullmatch(cell.strip()):
        return "write numbers with a decimal point, such as 50.5, and with nothing between thousands"
    return "fix the cell, or list it under missing in a schema"


def _date_remedy(column: Column, cell: object) -> str:
    form, likely = column.get("format"), date_format([cell])
    if form is not None:
        return f'write it as "{form}" says' + ("" if likely is None else ", or declare the format that files have")
    return f'write it as ISO does, such as 2024-05-31, or declare format = "{likely or "%d.%m.%Y"}" for the column'


def _filled(column: Column, table: Table, found: Array, gaps: Array, groups: Sequence[Group]) -> Array:
    """Gaps become a declared constant or, where that is declared, a statistic of the client's own training rows."""
    fill = column.get("fill")
    if fill is None:
        remedy = "declare fill for the column before training, a constant in its own units, or fill it in the data"
        table.refuse(column.name, int(np.flatnonzero(gaps)[0]), "a value", None, remedy)
    if fill not in CLIENT_FILLS:
        constant = column.value_of(fill)
        assert constant is not None  # as the declaration was checked
        return np.where(gaps, constant, found)
    made = found.copy()
    for rows, training in groups:
        known = found[training][~gaps[training]]
        statistic = np.mean if fill == "client_mean" else np.median
        made[rows] = np.where(gaps[rows], statistic(known) if len(known) else column.middle_and_half[0], found[rows])
    return made


def _scaled(column: Column, found: Array) -> Array:
    if column.kind == "boolean":
        return found
    if column.kind == "ordinal":
        return 2 * found / (len(column.categories) - 1) - 1
    middle, half = column.middle_and_half
    scaled = (found - middle) / half
    return np.clip(scaled, -1, 1) if "range" in column.declared else scaled
