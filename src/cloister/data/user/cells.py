"""Cells of a table: what one says, as a number, a word or a day, however its file happens to write it."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from cloister.data.raw import Array

MISSING = ("", "?", "-", "--", "NA", "N/A", "n/a", "NaN", "nan", "null", "NULL", "None", "none")
"""Cells that count as missing unless a schema says otherwise; a declared category of that name is one all the same."""

DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
DATE_FORMATS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y")
"""How dates are often written that are not ISO's."""


@dataclass(frozen=True)
class Cells:
    """A column: its different cells once each, and which of them every row has (-1: nothing at all)."""

    values: list[Any]
    codes: Array

    def taken(self, found: Sequence[float], nothing: float) -> Array:
        """A number for every row, from one for every different cell."""
        return np.append(np.asarray(found, dtype=np.float64), nothing)[self.codes]

    def first_row(self, value: int) -> int:
        """The first row that has this one of the different cells."""
        return int(np.flatnonzero(self.codes == value)[0])


def cells_of(array: Array) -> Cells:
    """The cells of an array; None, NaN and the like are nothing."""
    import pandas as pd

    if array.dtype == object:
        truths = np.fromiter((isinstance(cell, (bool, np.bool_)) for cell in array), dtype=bool, count=len(array))
        if truths.any() and not truths.all():  # pandas takes True for 1, whichever comes first
            rest = array.copy()
            rest[truths] = None
            others = cells_of(rest)
            codes, count = np.array(others.codes), len(others.values)
            codes[truths] = count + array[truths].astype(np.int64)
            return _used([*others.values, False, True], codes)
    codes, values = pd.factorize(array)
    if np.asarray(values).dtype.kind == "M":
        values = np.asarray(values).astype("datetime64[us]")  # of which Python knows what they are
    return Cells(values.tolist(), np.asarray(codes))


def _used(values: list[Any], codes: Array) -> Cells:
    """Without cells that no row has."""
    there = sorted({int(code) for code in np.unique(codes)} - {-1})
    new = np.full(len(values) + 1, -1)  # the last stands for -1
    new[there] = np.arange(len(there))
    return Cells([values[code] for code in there], new[codes])


def number_of(value: Any) -> float | None:
    """The number that a cell says, if it says one; what is not finite is none.

    >>> number_of(" 1.50"), number_of("True"), number_of("1_000"), number_of("nan")
    (1.5, 1.0, None, None)
    """
    if isinstance(value, str):
        value = value.strip()
        if value in ("True", "TRUE", "true", "False", "FALSE", "false"):  # as pandas reads a column of numbers
            return float(value.lower() == "true")
        if "_" in value:  # which Python would pass over
            return None
    elif not isinstance(value, (numbers.Real, Decimal, np.bool_)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def text_of(value: Any) -> str:
    """A cell as a word; a number in one way, whether it came as 1, as 1.0 or as a text.

    >>> text_of(1.0), text_of(" mild "), text_of(True), text_of(0.5)
    ('1', 'mild', 'true', '0.5')
    """
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, bytes):
        return value.decode(errors="replace").strip()
    if isinstance(value, numbers.Real):
        number = float(value)
        return str(int(number)) if math.isfinite(number) and number == int(number) else repr(number)
    return value.isoformat() if isinstance(value, (date, datetime)) else str(value)


class Words:
    """Groups of words, each found again as it is written, or by its number: "1.0" is "1".

    >>> Words([["healthy"], ["1", "2"]]).find("2.0"), Words([["01"], ["1"]]).find("01")
    (1, 0)
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self.exact = {word: group for group, words in enumerate(groups) for word in words}
        of_number: dict[float, set[int]] = {}
        for word, group in self.exact.items():
            if (number := number_of(word)) is not None:
                of_number.setdefault(number, set()).add(group)
        self.by_number = {number: next(iter(found)) for number, found in of_number.items() if len(found) == 1}
        self.all_numbers = len(self.exact) > 0 and all(
            (number := number_of(word)) is not None and number in self.by_number for word in self.exact
        )

    def find(self, value: Any) -> int | None:
        """Which group a cell belongs to."""
        text = text_of(value)
        if text in self.exact:
            return self.exact[text]
        number = number_of(text)
        return None if number is None else self.by_number.get(number)


def truth_of(value: Any) -> int | None:
    """0 or 1, if a cell says no or yes.

    >>> truth_of("Yes"), truth_of(0.0), truth_of("perhaps")
    (1, 0, None)
    """
    text = text_of(value).lower()
    if text in ("true", "yes", "t", "y"):
        return 1
    if text in ("false", "no", "f", "n"):
        return 0
    number = number_of(text)
    return int(number) if number in (0.0, 1.0) else None


def days_of(value: Any, form: str | None = None) -> float | None:
    """The days from 1970-01-01 to the date that a cell says: an ISO date or time, or one of the given form.

    >>> days_of("1970-01-02"), days_of("2.1.1970", "%d.%m.%Y"), days_of("soon")
    (1.0, 1.0, None)
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            value = datetime.strptime(text, form) if form else datetime.fromisoformat(text)
        except ValueError:
            return None
    if isinstance(value, datetime):
        plain = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return (plain - datetime(1970, 1, 1)).total_seconds() / 86400
    return float((value - date(1970, 1, 1)).days) if isinstance(value, date) else None


def date_format(cells: Sequence[Any]) -> str | None:
    """The first usual format in which all cells are dates ("": ISO's); None where there is none.

    >>> date_format(["31.5.2024"]), date_format(["5/31/2024"]), date_format(["2024-05-31"]), date_format(["soon"])
    ('%d.%m.%Y', '%m/%d/%Y', '', None)
    """
    return next((form for form in ("", *DATE_FORMATS) if all(days_of(one, form) is not None for one in cells)), None)
