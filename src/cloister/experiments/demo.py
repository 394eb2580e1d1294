"""The demonstration: the same training without privacy, at epsilon 8 and at epsilon 2, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cloister.experiments.config import build
from cloister.experiments.folder import RunFolder

SHARED: dict[str, Any] = {
    "data": "digits",
    "clients": 300,
    "model": "logistic",
    "rounds": 60,
    "rate": 0.5,
    "lr": 1.0,
    "steps": 5,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "no privacy": {"method": "fedavg"},
    "epsilon 8": {"method": "dp_fedavg", "clip": 1.0, "epsilon": 8.0, "delta": 1e-3},
    "epsilon 2": {"method": "dp_fedavg", "clip": 1.0, "epsilon": 2.0, "delta": 1e-3},
}


def demo(folder: Path, seed: int = 0) -> Iterator[tuple[str, RunFolder]]:
    """Run the variants one after the other, each into a folder of its own."""
    for label, keys in VARIANTS.items():
        experiment = build({**SHARED, **keys, "seed": seed})
        path = folder / label.replace(" ", "-")
        experiment.start(folder=path, config=experiment.toml, progress=True)
        yield label, RunFolder.open(path)
