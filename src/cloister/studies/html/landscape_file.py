"""landscape.json: the loss around the model of a run, on a plane through it, as `cloister landscape` writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.runs.files import read_json

FILE = "landscape.json"
Grid = list[list[float | None]]


@dataclass(frozen=True)
class Landscape:
    """Loss, and accuracy where there is one, at w + alpha a + beta b: a row for each beta. On a line, beta is 0."""

    alpha: list[float]
    beta: list[float]
    loss: Grid
    accuracy: Grid | None
    of: str
    """On which samples: test or train."""
    samples: int
    rise: Mapping[str, float]
    """By how much the loss is larger at some radius, in the mean over random directions."""
    hessian: float | None
    """Its eigenvalue of largest absolute value."""

    @property
    def line(self) -> dict[float, float]:
        """The loss along alpha, where beta is 0."""
        middle = self.loss[len(self.beta) // 2]
        return {at: value for at, value in zip(self.alpha, middle, strict=True) if value is not None}


def read_landscape(folder: Path) -> Landscape | None:
    """That of the run in a folder, if there is one."""
    path = folder / FILE
    if not path.is_file():
        return None
    found = read_json(path)
    try:
        alpha, beta = [float(value) for value in found["alpha"]], [float(value) for value in found["beta"]]
        sharpness = found.get("sharpness") or {}
        return Landscape(
            alpha,
            beta,
            _grid(found["loss"], alpha, beta),
            None if found.get("accuracy") is None else _grid(found["accuracy"], alpha, beta),
            str(found["of"]),
            int(found["samples"]),
            {str(radius): float(value) for radius, value in (sharpness.get("rise") or {}).items()},
            None if sharpness.get("hessian") is None else float(sharpness["hessian"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupted(f"Expected axes and grids in {path}, found others ({error}): make it anew.") from None


def _grid(columns: Any, alpha: list[float], beta: list[float]) -> Grid:
    """The file has a list for each alpha, a plot a row for each beta. What is no number is None."""
    if [len(column) for column in columns] != [len(beta)] * len(alpha):
        raise ValueError(f"not {len(alpha)} lists of {len(beta)}")
    numbers = [[math.nan if value is None else float(value) for value in column] for column in columns]
    return [[value if math.isfinite(value) else None for value in row] for row in zip(*numbers, strict=True)]
