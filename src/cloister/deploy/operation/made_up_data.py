"""Rows that nobody has: for a trial of a federation before anybody's data are touched.

They follow a schema, and their label depends on the other columns, so that there is something to learn.
"""

from __future__ import annotations

import csv
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cloister.data.user.columns import Column
from cloister.data.user.schema import Schema

if TYPE_CHECKING:
    from numpy.random import Generator

ROWS = 200

EXAMPLE_SCHEMA = """\
# Ranges come from what is publicly known of adults, not from anybody's patients.
label = "sick"

[columns.age]
kind = "number"
range = [18, 100]
fill = 55

[columns.pressure]  # mm Hg
kind = "number"
range = [80, 220]
fill = 120

[columns.smoker]
kind = "boolean"
fill = false

[columns.pain]
kind = "category"
categories = ["none", "mild", "strong"]
fill = "none"

[columns.sick]
kind = "category"
categories = ["no", "yes"]
"""
"""What is learned in a trial that nobody has said anything about."""


def write_rows(path: Path, schema: Schema, seed: int, rows: int = ROWS) -> None:
    """A CSV file of made-up rows, as the schema says files look."""
    random = np.random.default_rng(seed)
    columns = {name: _cells(column, rows, random) for name, column in schema.columns.items()}
    score = sum((_standing(schema.columns[name], columns[name]) for name in _inputs(schema)), np.zeros(rows))
    score = score + 0.3 * random.standard_normal(rows)
    for name in schema.label:
        columns[name] = _labels(schema.columns[name], score)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=schema.separator)
        if schema.header:
            writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def file_name(schema: Schema, node: str) -> str:
    """How a node's file is called."""
    return schema.files.replace("*", node) if schema.files else f"{node}.csv"


def _inputs(schema: Schema) -> list[str]:
    return [column.name for column in schema.feature_columns]


def _cells(column: Column, rows: int, random: Generator) -> list[Any]:
    """What a column's cells could be; whatever is written on a label is replaced later."""
    if column.kind == "ignore":
        return [""] * rows
    if column.kind in ("category", "ordinal"):
        words = [group[0] for group in column.groups]
        return [words[place] for place in random.integers(len(words), size=rows)]
    if column.kind == "boolean":
        return [str(int(one)) for one in random.integers(2, size=rows)]
    middle, half = column.middle_and_half
    values = middle + half * random.uniform(-1.0, 1.0, rows)
    if column.kind == "date":
        return [_day(column, value) for value in values]
    return [f"{value:.6g}" for value in values]


def _day(column: Column, days: float) -> str:
    day = date(1970, 1, 1) + timedelta(days=round(days))
    form = column.get("format")
    return day.strftime(form) if form else day.isoformat()


def _standing(column: Column, cells: list[Any]) -> Any:
    """From -1 to 1: how far a row's cell is to the upper end of its column."""
    values = np.array([column.value_of(cell) or 0.0 for cell in cells])
    low, high = values.min(), values.max()
    return np.zeros(len(cells)) if low == high else 2 * (values - low) / (high - low) - 1


def _labels(column: Column, score: Any) -> list[Any]:
    """Cells of a label that grow with the score."""
    places = score.argsort().argsort() / max(1, len(score))  # its rank, in [0, 1)
    if column.kind in ("category", "ordinal"):
        words = [group[0] for group in column.groups]
        return [words[int(place * len(words))] for place in places]
    if column.kind == "boolean":
        return [str(int(place >= 0.5)) for place in places]
    middle, half = column.middle_and_half
    values = middle + half * (2 * places - 1) if column.is_scaled else 1.0 + 99.0 * places
    return [_day(column, value) if column.kind == "date" else f"{value:.6g}" for value in values]
