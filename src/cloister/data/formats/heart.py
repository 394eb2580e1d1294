"""Heart disease: 920 patients of four hospitals, 13 features, sick or not.

A. Janosi, W. Steinbrunn, M. Pfisterer & R. Detrano, "Heart disease", UCI machine learning repository, 1988. A line has
13 numbers and a diagnosis from 0 (healthy) to 4; `?` is a missing value, and so is a blood pressure or a cholesterol of
0, which nobody alive has (all of Switzerland's cholesterol, for one).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.source import Source
from cloister.data.raw import Array, RawData, Samples
from cloister.data.splits import held_out, joined
from cloister.errors import expect

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


class Feature(NamedTuple):
    """A column: what a healthy adult would have (for a hospital that never measured it), and how it is scaled.

    These are textbook values and ends of the scales, not statistics of the data: x becomes (x - center) / spread.
    """

    name: str
    healthy: float
    center: float
    spread: float


FEATURES = (
    Feature("age", 55, 55, 10),
    Feature("sex", 1, 0.5, 0.5),  # 0 female, 1 male
    Feature("cp", 4, 2.5, 1.5),  # chest pain, 1 typical to 4 none
    Feature("trestbps", 120, 130, 20),  # blood pressure at rest, mm Hg
    Feature("chol", 200, 200, 50),  # cholesterol, mg/dl
    Feature("fbs", 0, 0.5, 0.5),  # fasting blood sugar above 120 mg/dl
    Feature("restecg", 0, 1, 1),  # electrocardiogram at rest, 0 normal to 2
    Feature("thalach", 150, 150, 25),  # greatest heart rate
    Feature("exang", 0, 0.5, 0.5),  # angina under exercise
    Feature("oldpeak", 0, 1, 1),  # depression of ST under exercise
    Feature("slope", 1, 2, 1),  # of ST, 1 up to 3 down
    Feature("ca", 0, 1.5, 1.5),  # vessels colored, 0 to 3
    Feature("thal", 3, 5, 2),  # 3 normal, 6 fixed, 7 reversible defect
)
NEVER_ZERO = [number for number, feature in enumerate(FEATURES) if feature.name in ("trestbps", "chol")]


IMPUTE = ("public", "client_median")


def files(root: Path, seed: int = 0, impute: str = "public") -> list[Path]:
    """One file per hospital."""
    return [root / "heart_disease" / f"processed.{hospital}.data" for hospital in HOSPITALS]


def read(root: Path, seed: int = 0, impute: str = "public") -> RawData:
    """Features float32 [n, 13], scaled; 1 for disease; a fifth of each hospital held out, owned by hospitals' names.

    A missing value becomes a public constant, so that a patient's row is made of that patient's values alone. With
    impute="client_median" it becomes the median of the hospital's training rows: then every row may tell of every
    patient of the hospital, which suits a guarantee for whole hospitals and no other.
    """
    expect(impute in IMPUTE, f"impute to be {' or '.join(IMPUTE)}", impute, "public suits every guarantee")
    named = zip(files(root), HOSPITALS, strict=True)
    own = impute == "client_median"
    parts = [_hospital(Source(path, "heart"), name, seed, own) for path, name in named]
    train, test = (joined([part[number] for part in parts]) for number in (0, 1))
    return RawData(train, test, classes=2, prepared_by="owner" if own else "sample")


def _hospital(source: Source, name: str, seed: int, own: bool) -> tuple[Samples, Samples]:
    """A hospital's two parts. What is missing becomes a constant or, with `own`, the median of its training rows."""
    rows = _table(source)
    values, sick = rows[:, :-1], (rows[:, -1] > 0).astype(np.int64)
    values[:, NEVER_ZERO] = np.where(values[:, NEVER_ZERO] == 0, np.nan, values[:, NEVER_ZERO])
    test = held_out(name, len(rows), seed)
    for number, feature in enumerate(FEATURES):
        column = values[:, number]
        known = column[~test & ~np.isnan(column)]
        column[np.isnan(column)] = np.median(known) if own and len(known) else feature.healthy
    center, spread = (np.array([getattr(f, what) for f in FEATURES]) for what in ("center", "spread"))
    scaled = ((values - center) / spread).astype(np.float32)
    train, held = (Samples(scaled[m], sick[m], np.full(int(m.sum()), name)) for m in (~test, test))
    return train, held


def _table(source: Source) -> Array:
    """The numbers of a file [n, 14], NaN where one is missing."""
    rows = []
    for number, line in enumerate(source.text().splitlines(), start=1):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        width = len(FEATURES) + 1
        source.expect(len(cells) == width, f"{width} values in a line", f"{len(cells)} in line {number}")
        try:
            row = [np.nan if cell == "?" else float(cell) for cell in cells]
        except ValueError:
            raise source.damaged("numbers or ?", f"{line!r} in line {number}") from None
        finite = all(cell == "?" or np.isfinite(value) for cell, value in zip(cells, row, strict=True))
        source.expect(finite, "finite numbers or ?", f"{line!r} in line {number}")
        source.expect(row[-1] in range(5), "a diagnosis from 0 to 4", f"{cells[-1]!r} in line {number}")
        rows.append(row)
    source.expect(len(rows) > 0, "at least one patient", "none")
    return np.array(rows)


HEART = Format("heart", read, files)
