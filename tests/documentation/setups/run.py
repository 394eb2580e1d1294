"""Two finished runs on digits, runs/a and runs/b, of a few rounds; in Python the first is `run`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from cloister.runs.config import build

KEYS = {
    "method": "dp_fedavg",
    "clip_norm": 1.0,
    "lr": 1.0,
    "local_steps": 2,
    "data": "digits",
    "clients": 60,
    "cohort": "poisson",
    "sampling_rate": 0.5,
    "rounds": 3,
    "epsilon": 4.0,
    "delta": 1e-3,
    "engine": "vectorized",
}


def prepare(folder: Path, names: dict[str, Any], **more: Any) -> None:
    """As `cloister run` would, so that a config is kept with each."""
    for seed, name in enumerate(("b", "a")):
        shutil.rmtree(folder / "runs" / name, ignore_errors=True)
        made = build({**KEYS, "seed": seed, **more})
        names["run"] = made.start(folder=folder / "runs" / name, config=made.toml, progress=False)
