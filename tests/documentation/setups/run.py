"""Two finished runs on digits, runs/a and runs/b, of a few rounds; in Python the first is `run`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cloister as cl


def prepare(folder: Path, names: dict[str, Any]) -> None:
    task = cl.data.digits(clients=60)
    for seed, name in enumerate(("b", "a")):
        shutil.rmtree(folder / "runs" / name, ignore_errors=True)
        method = cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=2)
        names["run"] = cl.run(
            method,
            task,
            rounds=3,
            cohort=cl.poisson(0.5),
            epsilon=4.0,
            delta=1e-3,
            seed=seed,
            engine="vectorized",
            folder=folder / "runs" / name,
        )
