"""Runs on scikit-learn's digits beside which docs/theory.md draws the papers' bounds (`documents.py --theory`).

docs/theory-measured.json    what `cloister.studies.measured_bounds` makes of them, and the pictures' only source
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

RECORD = ["norms", "clipping", "clients", "signal"]
CLIENTS, SEEDS, DISTANCE = (5, 10, 25, 50, 100), (0, 1, 2, 3, 4), 0.2


def measure() -> dict[str, Any]:
    """Two recorded runs of user-level methods, and PFL with more and more clients of equally many samples."""
    import cloister as cl
    from cloister.studies.measured_bounds import of_run, utility

    task = cl.data.digits(clients=100)
    keys = {"lr": 0.5, "local_steps": 5, "clip_norm": 0.5}
    made = {"DP-FedAvg": cl.methods.dp_fedavg(**keys), "DP-FedSAM": cl.methods.dp_fedsam(**keys, rho=0.1)}
    found: dict[str, Any] = {"runs": {}}
    with tempfile.TemporaryDirectory() as place:
        for name, method in made.items():
            folder = Path(place) / name
            settings = {"rounds": 30, "cohort": cl.poisson(0.5), "epsilon": 8.0, "delta": 1e-3, "evaluate_every": 1}
            cl.run(method, task, folder=folder, record=RECORD, engine="loop", progress=False, **settings)
            found["runs"][name] = _rounded(of_run(folder))
    accuracies = {k: [_pfl(task, k, seed, 1.0) for seed in SEEDS] for k in CLIENTS}
    ideal = _pfl(task, max(CLIENTS), 0, 0.0)
    found["utility"] = _rounded(utility(accuracies, ideal, DISTANCE))
    return found


def _pfl(task: Any, clients: int, seed: int, noise: float) -> float:
    """The accuracy of PFL with the first clients of a task, each with about 14 samples, all in every round."""
    import cloister as cl

    people = task.population
    some = replace(people, starts=people.starts[:clients], sizes=people.sizes[:clients])
    own = replace(task, population=some, local_test=None)
    method = cl.methods.pfl(clip_norm=1.0, lr=0.5, batch_size=7, local_epochs=1, noise_multiplier=noise)
    found = cl.run(method, own, rounds=20, cohort=cl.full(), delta=1e-3, seed=seed, engine="vectorized", progress=False)
    assert found.accuracy is not None
    return found.accuracy


def _rounded(value: Any) -> Any:
    """Six digits are enough for a picture, and the file stays small."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def write(docs: Path) -> None:
    """The file, and the pictures of it."""
    found = measure()
    (docs / "theory-measured.json").write_text(json.dumps(found) + "\n")
    draw(docs)


def draw(docs: Path) -> None:
    """The pictures, from the file alone."""
    from cloister.studies.bound_plots import bounds_plot

    found = json.loads((docs / "theory-measured.json").read_text())
    bounds_plot(found["runs"], None, docs / "theory" / "measured.png", dpi=72)
    bounds_plot({}, found["utility"], docs / "theory" / "clients.png", dpi=72)


def text(found: dict[str, Any]) -> str:
    """What the page says of them in a table."""
    lines = ["| clients | accuracy | from the ideal | as 1/sqrt(k) | l-utility | Theorem 3 |", "|---" * 6 + "|"]
    own = found["utility"]
    rows = zip(*(own[name] for name in ("clients", "accuracy", "apart", "predicted", "utility", "bound")), strict=True)
    lines += [f"| {k} | " + " | ".join(f"{value:.3f}" for value in row) + " |" for k, *row in rows]
    seeds = min(map(len, own["accuracies"]))
    ideal = f"The ideal has accuracy {own['ideal']:.3f}, l is {own['distance']:g}; {seeds} seeds of each."
    return "\n".join([*lines, "", ideal])
