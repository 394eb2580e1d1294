"""The demonstration: the same training without privacy, at epsilon 8 and at epsilon 2, side by side."""

from __future__ import annotations

from typing import Any

from cloister.runs.config import build
from cloister.studies.cells import Cell

SHARED: dict[str, Any] = {
    "data": "digits",
    "clients": 300,
    "model": "logistic",
    "rounds": 60,
    "sampling_rate": 0.5,
    "lr": 1.0,
    "local_steps": 5,
    "engine": "vectorized",  # which is fast here; the quickest of several may be another one on another day
}
VARIANTS: dict[str, dict[str, Any]] = {
    "no privacy": {"method": "fedavg"},
    "epsilon 8": {"method": "dp_fedavg", "clip_norm": 1.0, "epsilon": 8.0, "delta": 1e-3},
    "epsilon 2": {"method": "dp_fedavg", "clip_norm": 1.0, "epsilon": 2.0, "delta": 1e-3},
}


def planned(seed: int = 0) -> list[Cell]:
    """The variants, none of which has begun."""
    made = {label: build({**SHARED, **keys, "seed": seed}) for label, keys in VARIANTS.items()}
    return [Cell(label, {}, experiment) for label, experiment in made.items()]
