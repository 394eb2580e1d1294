"""What docs/method-curves.json says of a method: its curves, and what it reaches (`benchmarks/method_curves.py`)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from site_pages.charts import Line, legend, line_chart

FILE = "docs/method-curves.json"
Row = dict[str, Any]


@cache
def rows(root: Path) -> list[Row]:
    """Of every method and epsilon."""
    found: list[Row] = json.loads((root / FILE).read_text(encoding="utf-8"))["rows"]
    return found


def rows_of(root: Path, method: str) -> list[Row]:
    """Of one method, the largest epsilon first; FedAvg, which is in both files, with the file of whole clients."""
    own = [row for row in rows(root) if row["method"] == method]
    return [row for row in own if row["file"] == own[0]["file"]]


def reference_of(root: Path, file: str) -> list[Row]:
    """FedAvg without privacy, on the federation of this file."""
    return [row for row in rows(root) if row["method"] == "fedavg" and row["file"] == file]


def charts(root: Path, method: str) -> str:
    """Accuracy over rounds, and over what has been spent, beside FedAvg without privacy."""
    own = rows_of(root, method)
    # Votes are taken in one round, which has no curve.
    marks = [_line(row, color, "round") for color, row in enumerate(own)]
    beside = [] if method == "fedavg" else reference_of(root, own[0]["file"])
    most = max(mark.xs[-1] for mark in marks)
    base = [_line(row, 9, "round", until=most) for row in beside if most > 1]
    spent = [_line(row, color, "epsilon") for color, row in enumerate(own) if row["certified"] is not None]
    parts = [line_chart(f"{method} over rounds", "round", [*base, *marks])]
    if spent:
        parts.append(line_chart(f"{method} over what is spent", "epsilon spent so far", spent))
    return f'<div class="charts">{"".join(parts)}</div>\n{legend([*marks, *base])}\n'


def _line(row: Row, color: int, axis: str, until: float | None = None) -> Line:
    """The mean over seeds, as far as all of them go; runs may end early where noise is chosen on the way."""
    curves = row["curves"]
    shortest = min(len(curve["round"]) for curve in curves)
    if until is not None:
        shortest = min(shortest, sum(one <= until for one in curves[0]["round"]))
    seeds = [curve["accuracy"][:shortest] for curve in curves]
    each = list(zip(*seeds, strict=True))
    across = list(zip(*(curve[axis][:shortest] for curve in curves), strict=True))
    name = "FedAvg, no privacy" if row["target"] is None else f"epsilon {row['target']:g}"
    low, high = [min(ys) for ys in each], [max(ys) for ys in each]
    return Line(name, color, [fmean(xs) for xs in across], [fmean(ys) for ys in each], low, high)


def reached(root: Path, method: str, target: float | None) -> str:
    """The mean accuracy at this epsilon, in words of a table."""
    found = [row for row in rows_of(root, method) if row["target"] == target]
    return f"{found[0]['accuracy']:.3f}" if found else ""
