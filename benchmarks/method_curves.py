"""Every method on scikit-learn's digits at equal epsilons, round by round: the curves of the site's pages of methods.

    python benchmarks/method_curves.py [--seeds 0 1 2] [--only dp_fedavg pfl] [--json docs/method-curves.json]

Settings and epsilons are those of experiments/digits-methods.toml (whole clients are protected) and
experiments/digits-samples.toml (any one sample is); both have settings that were set once, by hand. A run takes
seconds, all of them some minutes on one core. What is not named by --only stays in the file as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
FILES = ("digits-methods", "digits-samples")
HERE = {"engine": "vectorized", "evaluate_every": 1}
"""How it is run; all other keys are the file's."""


def measure(name: str, seeds: list[int], only: list[str]) -> Iterator[dict[str, Any]]:
    """The methods of one file, each at every epsilon; rows with a label of their own are variations and left out."""
    from cloister.runs import catalogue
    from cloister.studies.planning import planned

    rows: dict[tuple[str, float | None], list[Any]] = {}
    for cell in planned(ROOT / "experiments" / f"{name}.toml", {"seed": seeds, **HERE}):
        if cell.label in catalogue.stored().choices["method"] and (not only or cell.label in only):
            rows.setdefault((cell.label, cell.epsilon), []).append(cell)
    for (method, epsilon), cells in rows.items():
        runs = [cell.experiment.start(progress=False) for cell in cells]
        yield {
            "method": method,
            "file": f"experiments/{name}.toml",
            "target": epsilon,
            "seeds": [cell.seed for cell in cells],
            "settings": _settings(cells[0].experiment.values),
            "certified": _finite(max(run.epsilon for run in runs)),
            "delta": cells[0].experiment.values.get("delta"),
            "accuracy": round(fmean(run.accuracy for run in runs), 4),
            "seconds": round(fmean(run.seconds for run in runs), 1),
            "curves": [_curve(run.history) for run in runs],
        }
        print(f"{method} at {epsilon}: {[run.accuracy for run in runs]}", file=sys.stderr)


def _settings(values: dict[str, Any]) -> dict[str, Any]:
    """What was given, but for what varies and for how it is run."""
    return {key: value for key, value in values.items() if key not in ("seed", "epsilon", *HERE)}


def _curve(history: list[dict[str, Any]]) -> dict[str, list[Any]]:
    tested = [row for row in history if row.get("accuracy") is not None]
    return {
        "round": [row["round"] for row in tested],
        "accuracy": [round(row["accuracy"], 4) for row in tested],
        "epsilon": [_finite(row.get("epsilon", math.inf)) for row in tested],
    }


def _finite(epsilon: float | None) -> float | None:
    return None if epsilon is None or not math.isfinite(epsilon) else round(epsilon, 4)


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    words.add_argument("--only", nargs="+", default=[])
    words.add_argument("--json", type=Path, default=ROOT / "docs" / "method-curves.json")
    given = words.parse_args()
    torch.set_num_threads(1)
    rows = [row for name in FILES for row in measure(name, given.seeds, given.only)]
    if given.only and given.json.exists():
        old = json.loads(given.json.read_text())["rows"]
        rows = [row for row in old if row["method"] not in given.only] + rows
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    given.json.write_text(f'{{"command": "python benchmarks/method_curves.py",\n "rows": [\n  {lines}\n ]}}\n')


if __name__ == "__main__":
    main()
