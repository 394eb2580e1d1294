"""landscape.json: the loss around a trained model, on a plane through it, as a run recorded it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.runs.files import read_json

Grid = list[list[float | None]]


@dataclass(frozen=True)
class Landscape:
    """Loss, and accuracy where there is one, at w + alpha d1 + beta d2: a row for each beta."""

    alpha: list[float]
    beta: list[float]
    loss: Grid
    accuracy: Grid | None


def read_landscape(folder: Path) -> Landscape | None:
    """What a run recorded, if it did."""
    path = folder / "landscape.json"
    if not path.is_file():
        return None
    found = read_json(path)
    try:
        alpha, beta = [float(value) for value in found["alpha"]], [float(value) for value in found["beta"]]
        loss = _grid(found["loss"], alpha, beta)
        accuracy = None if found.get("accuracy") is None else _grid(found["accuracy"], alpha, beta)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupted(
            f"Expected axes and grids of a landscape in {path}, found others ({error}): restore it."
        ) from None
    return Landscape(alpha, beta, loss, accuracy)


def _grid(rows: Any, alpha: list[float], beta: list[float]) -> Grid:
    """Numbers, None where there is none: plotly and JSON have no infinities."""
    if [len(row) for row in rows] != [len(alpha)] * len(beta):
        raise ValueError(f"not {len(beta)} rows of {len(alpha)}")
    numbers = [[None if value is None else float(value) for value in row] for row in rows]
    return [[value if value is not None and math.isfinite(value) else None for value in row] for row in numbers]
