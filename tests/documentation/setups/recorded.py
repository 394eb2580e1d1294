"""runs/a and runs/b are short runs on digits that recorded everything; in Python `run` is the first of them.

`norms` are those of its updates, round by round.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cloister as cl

RECORD = ["norms", "clipping", "clients", "signal", "train", "thresholds"]


def prepare(folder: Path, names: dict[str, Any]) -> None:
    task = cl.data.digits(clients=40)
    for seed, name in enumerate(("b", "a")):
        shutil.rmtree(folder / "runs" / name, ignore_errors=True)
        names["run"] = cl.run(
            cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2),
            task,
            rounds=3,
            cohort=cl.poisson(0.5),
            epsilon=8.0,
            delta=1e-3,
            seed=seed,
            engine="vectorized",
            record=RECORD,
            evaluate_every=1,
            folder=folder / "runs" / name,
        )
    names["cl"] = cl
    by_round = names["run"].recorded.by_round("clients").values()
    names["norms"] = [[row["norm"] for row in rows.values()] for rows in by_round]
