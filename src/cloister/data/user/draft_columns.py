"""What a column seems to be, judging by one client's cells: for drafts of schemas, which are to be checked."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from cloister.data.user.cells import DECIMAL_COMMA, date_format, days_of, number_of, text_of, truth_of

MOST_CATEGORIES = 20
"""More different words than this are taken for names or remarks, and ignored."""

MOSTLY = 0.9
"""A column with at least this share of numbers is one of numbers; its words are drafted as missing."""

_ID = re.compile(r"(?i:(.*[\W_])?(id|ids|uuid|guid|index))|.*[a-z]I[dD]")

Declared = tuple[dict[str, Any], Mapping[str, str]]
"""What a column is said to be, and what there is to check."""


def is_id(name: str) -> bool:
    """Whether a column is called like one that numbers rows or people.

    >>> is_id("patient_id"), is_id("ID"), is_id("patientId"), is_id("paid"), is_id("acid")
    (True, True, True, False, False)
    """
    return _ID.fullmatch(name) is not None


def column_draft(values: Sequence[Any], weights: Any, is_label: bool) -> Declared:
    """What a column seems to be, from its different cells and how often each is there."""
    if not values:
        return _ignored("nothing but missing cells")
    numbers = [number_of(cell) for cell in values]
    truths = {truth_of(cell) for cell in values}
    if truths == {0, 1} or (is_label and truths < {0, 1}):  # a client may well have one class alone
        return {"kind": "boolean", "fill": bool(truth_of(values[int(np.argmax(weights))]))}, {"fill": "check"}
    if None not in numbers and not (is_label and len(set(numbers)) <= MOST_CATEGORIES and _whole(numbers)):
        return _number(np.repeat(np.array(numbers, dtype=float), weights))
    if any(isinstance(cell, str) and DECIMAL_COMMA.fullmatch(cell.strip()) for cell in values):
        return _ignored("decimal commas; write decimal points, then declare a number")
    form = date_format(values)
    if form is not None and None in numbers:
        return _date(values, form)
    if not is_label and _share(numbers, weights) >= MOSTLY and numbers.count(None) <= MOST_CATEGORIES:
        return _mostly_numbers(values, numbers, weights)
    return _category(values, numbers, weights)


def _ignored(reason: str) -> Declared:
    return {"kind": "ignore"}, {"kind": f"check: {reason}"}


def _category(values: Sequence[Any], numbers: Sequence[float | None], weights: Any) -> Declared:
    words = {text_of(cell) if number is None else text_of(number) for cell, number in zip(values, numbers, strict=True)}
    if len(words) > MOST_CATEGORIES:
        return _ignored("many different words")
    if len(words) < 2:
        return _ignored("the same everywhere")
    ordered = sorted(words, key=lambda word: (number_of(word) or 0.0, word))
    made = {"kind": "category", "categories": ordered, "fill": text_of(values[int(np.argmax(weights))])}
    return made, {"categories": "check", "fill": "check"}


def _whole(numbers: Sequence[Any]) -> bool:
    return all(float(number).is_integer() for number in numbers)


def _share(numbers: Sequence[float | None], weights: Any) -> float:
    known = np.array([number is not None for number in numbers])
    return float(np.asarray(weights)[known].sum() / np.sum(weights))


def _mostly_numbers(values: Sequence[Any], numbers: Sequence[float | None], weights: Any) -> Declared:
    """Numbers among which a few words stand, such as `unknown`."""
    known = np.array([number is not None for number in numbers])
    found = np.array([number for number in numbers if number is not None])
    made, comments = _number(np.repeat(found, np.asarray(weights)[known]))
    words = sorted({text_of(cell) for cell, fine in zip(values, known, strict=True) if not fine})
    if made["kind"] == "ignore":
        return made, comments
    return {**made, "missing": words}, {**comments, "missing": "check: words among numbers"}


def _number(numbers: Any) -> Declared:
    low, high = rounded_out(float(numbers.min()), float(numbers.max()))
    if high - low > 1e17:
        return _ignored("numbers too large to be used")
    made = {"kind": "number", "range": [low, high], "fill": _short(float(np.median(numbers)))}
    return made, {"range": "check", "fill": "check"}


def _date(values: Sequence[Any], form: str) -> Declared:
    """Dates, from the beginning of the first year to the end of the last."""
    days = [days_of(value, form or None) or 0.0 for value in values]
    first, last = (date(1970, 1, 1) + timedelta(days=math.floor(day)) for day in (min(days), max(days)))
    end = date(last.year + 1, 1, 1) if last.year < date.max.year else date.max
    begin = f"{first.year:04}-01-01"
    made = {"kind": "date", **({"format": form} if form else {}), "range": [begin, end.isoformat()], "fill": begin}
    return made, {"format": "check", "range": "check", "fill": "check"}


def rounded_out(low: float, high: float) -> tuple[float, float]:
    """Ends of a range that are round numbers, outside of both.

    >>> rounded_out(23.0, 77.0), rounded_out(0.13, 6.2), rounded_out(5, 5), rounded_out(1234567.1, 1234567.2)
    ((20, 80), (0, 7), (4, 6), (1234500, 1234600))
    """
    largest = max(abs(low), abs(high), 1e-12)
    size = max(high - low, largest * 1e-4)  # ends of five digits are enough, and stay what they are when shortened
    step = 10.0 ** math.floor(math.log10(size))
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    if ends[1] - ends[0] < 1e-15:
        ends = ends[0] - max(1, step), ends[1] + max(1, step)
    return _short(ends[0]), _short(ends[1])


def _short(number: float) -> float:
    """A number of few digits, whole where it is."""
    short = float(f"{number:.6g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
