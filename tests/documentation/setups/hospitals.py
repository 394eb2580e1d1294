"""Four made-up hospitals as a folder of CSV files, new patients, and a schema.

The sick are older and have slower hearts; some ages and doses were not written down.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

HOSPITALS = {"avon": 90, "brent": 70, "clyde": 40, "dee": 50}
SCHEMA = """label = "sick"

[columns.age]
kind = "number"
range = [18, 100]

[columns.heart_rate]
kind = "number"
range = [40, 220]
missing = ["?"]
fill = 130

[columns.smoker]
kind = "category"
categories = ["no", "yes"]

[columns.sick]
kind = "category"
categories = ["no", "yes"]
"""


def patients(count: int, random: np.random.Generator) -> pd.DataFrame:
    sick = random.random(count) < 0.45
    rate = np.where(sick, 130, 165) + random.integers(-20, 20, count)
    known = random.random(count) > 0.1
    return pd.DataFrame(
        {
            "age": np.where(sick, 62, 48) + random.integers(-12, 12, count),
            "heart_rate": [str(one) if there else "?" for one, there in zip(rate, known, strict=True)],
            "smoker": random.choice(["no", "yes"], count),
            "sick": np.where(sick, "yes", "no"),
        }
    )


def prepare(folder: Path, names: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    (folder / "hospitals").mkdir(exist_ok=True)
    for name, count in HOSPITALS.items():
        patients(count, random).to_csv(folder / "hospitals" / f"{name}.csv", index=False)
    patients(8, random).drop(columns="sick").to_csv(folder / "new.csv", index=False)
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
