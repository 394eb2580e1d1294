"""runs/a and runs/b are short runs on digits that recorded everything; in Python `run` is the first of them.

`norms` are those of its updates, round by round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloister as cl
from documentation.setups import run

RECORD = ["norms", "clipping", "clients", "signal", "train", "thresholds"]


def prepare(folder: Path, names: dict[str, Any]) -> None:
    run.prepare(folder, names, record=RECORD, evaluate_every=1)
    names["cl"] = cl
    by_round = names["run"].recorded.by_round("clients").values()
    names["norms"] = [[row["norm"] for row in rows.values()] for rows in by_round]
