"""Data in other forms: `dataset` has columns, as those of Hugging Face have; pets/ has pictures by client and pet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


class Columns:
    """A data set with columns."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]


def prepare(folder: Path, names: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    columns = {"x": random.normal(size=60) + labels, "label": labels, "user_id": np.repeat(np.arange(6), 10)}
    names["dataset"] = Columns(columns)
    for client in ("ann", "bob", "cem"):
        for pet in ("cat", "dog"):
            place = folder / "pets" / client / pet
            place.mkdir(parents=True, exist_ok=True)
            for number in range(4):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")
