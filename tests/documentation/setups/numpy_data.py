"""Samples of a few clients as arrays and as a table: inputs, labels, client_ids, frame, schema."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from documentation.setups.hospitals import HOSPITALS, SCHEMA, patients


def prepare(folder: Path, names: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    names["labels"] = random.integers(0, 2, 240)
    names["inputs"] = random.normal(size=(240, 5)) + names["labels"][:, None]
    names["client_ids"] = np.repeat(np.arange(24), 10)
    tables = [patients(count, random).assign(hospital=name) for name, count in HOSPITALS.items()]
    names["frame"] = pd.concat(tables, ignore_index=True)
    names["schema"] = tomllib.loads(SCHEMA)
