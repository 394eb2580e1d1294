"""Attacks on MNIST by its writers, without and with privacy, at the same settings:

    python benchmarks/attacks.py                    all runs, each attacked with 32 shadow models (twenty minutes)
    python benchmarks/attacks.py "user 1" "open"    some of them; the others stay as they were found

Runs are those of experiments/attacks.toml, kept in build/attacks, with what attacks found; what is there already is not
made again. Needs MNIST and the QMNIST labels (CLOISTER_DATA). What was found goes to docs/attacks.json, without any
image, and pictures to docs/attacks-*.png: their images are MNIST's, which are public. docs/audit.md quotes both
(`python benchmarks/documents.py`).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXPERIMENT = "experiments/attacks.toml"
RUNS = {
    "open": [],
    "user 8": ["method=dp_fedavg", "clip_norm=0.5", "epsilon=8"],
    "user 1": ["method=dp_fedavg", "clip_norm=0.5", "epsilon=1"],
    "sample 1": ["method=pfl", "clip_norm=0.5", "epsilon=1"],
}
SHADOWS, SEED = 32, 0
DRAWN = ("open", "user 1", "sample 1")
"""At epsilon 8 the promise bounds none of the rates that are drawn."""


def measured(name: str, folder: Path) -> dict[str, Any]:
    """One run, and what attacks on it found."""
    from cloister.runs.config import build
    from cloister.runs.config_file import load
    from cloister.runs.folder import RunFolder
    from cloister.studies.attacks.attack import attack
    from cloister.studies.attacks.found import in_steps, read_attacks, write_attacks

    if not folder.exists():
        experiment = build(load(ROOT / EXPERIMENT, [*RUNS[name], "engine=vectorized"]))
        folder.parent.mkdir(parents=True, exist_ok=True)
        experiment.start(folder=folder, config=experiment.toml, progress=False)
    found = read_attacks(folder)
    if found is None or found.membership[-1].shadows != SHADOWS:
        found = attack(folder, shadows=SHADOWS, seed=SEED)
        write_attacks(folder, found)
    run = RunFolder.open(folder)
    scores, epsilon, delta = run.checkpoint().scores, found.epsilon, found.delta
    assert scores is not None
    area, error = against_test_set(folder)
    return {
        "words": RUNS[name],
        "seed": run.description().seed,
        "accuracy": scores["accuracy"],
        "title": found.title,
        "epsilon, delta": None if epsilon is None else (epsilon, delta),
        "adjacency": run.certificate().adjacency,
        "one sample or another": None if epsilon is None or delta is None else in_steps(epsilon, delta, found.steps),
        "correlations": [round(one.correlation, 4) for one in found.inversion],
        "members": found.membership[0].members,
        "others": found.others,
        "loss, against the test set of other writers": {"area": round(area, 4), "standard error": round(error, 4)},
        "attacks": [rates(one, found) for one in found.membership],
    }


def against_test_set(folder: Path) -> tuple[float, float]:
    """How well the loss seems to do, and its error, where others are not of the same people."""
    from cloister.runs.config import build
    from cloister.runs.config_file import load as load_config
    from cloister.runs.load import load
    from cloister.studies.attacks.likelihood import confidences
    from cloister.studies.attacks.membership import BY_LOSS, membership

    task = build(load_config(folder / "config.toml")).task
    assert task is not None
    people, module = task.population, load(folder).module
    inside = confidences(module, task.loss, people.inputs, people.labels)
    found = membership(BY_LOSS, inside, confidences(module, task.loss, task.test_inputs, task.test_labels))
    return found.area, found.area_error


def rates(one: Any, found: Any) -> dict[str, Any]:
    """What one attack reached, beside what is allowed at as many false alarms as the truth may have (95 %)."""
    from cloister.studies.attacks.membership import interval

    rows = []
    for rate, reached in one.at.items():
        false = int(float(rate) * one.others)
        between = interval(false, one.others)
        rows.append(
            {
                "false positives": [false, one.others],
                "false positive rate, 95 %": between,
                "true positive rate": round(reached, 5),
                "95 %": one.between[rate],
                "allowed": found.allowed(float(rate)),
                "allowed at the interval's end": found.allowed(between[1]),
            }
        )
    return {
        "attack": one.attack,
        "shadows": one.shadows,
        "area": round(one.area, 4),
        "standard error": round(one.area_error, 4),
        "rates": dict(zip(one.at, rows, strict=True)),
    }


def text(found: dict[str, Any]) -> str:
    """For docs/audit.md."""
    lines = ["| run | accuracy | images found: correlation |", "|---" * 3 + "|"]
    for row in found["runs"].values():
        least, most = min(row["correlations"]), max(row["correlations"])
        images = f"{math.floor(1000 * least) / 1000:.3f} to {math.ceil(1000 * most) / 1000:.3f}"
        lines.append(f"| {row['title']} | {row['accuracy']:.3f} | {images} |")
    lines += ["", "| run | attack | area | TPR at FPR 0.1 % | at 1 % | allowed at 1 % |", "|---" * 6 + "|"]
    for row in found["runs"].values():
        for one in row["attacks"]:
            cells = [row["title"] if one is row["attacks"][0] else "", one["attack"]]
            cells.append(f"{one['area']:.3f} ± {1.96 * one['standard error']:.3f}")
            cells += [_percent(one["rates"][rate]) for rate in ("0.001", "0.01")]
            allowed = one["rates"]["0.01"]["allowed"]
            cells.append("anything" if allowed is None else f"{100 * allowed:.1f} %")
            lines.append("| " + " | ".join(cells) + " |")
    some = next(iter(found["runs"].values()))
    about = f"Made by `{found['command']}`: {some['members']:,} members and as many others, {found['shadows']} shadow "
    about += f"models for each run, seed {found['seed']}. In brackets: 95 %, Clopper & Pearson, of one model each."
    seeming = found["runs"]["open"]["loss, against the test set of other writers"]
    about += f"\nAgainst the test set, of other writers, the loss would seem to reach {seeming['area']:.3f} ± "
    about += f"{1.96 * seeming['standard error']:.3f} without privacy."
    return "\n".join([*lines, "", about])


def _percent(at: dict[str, Any]) -> str:
    low, high = (100 * end for end in at["95 %"])
    return f"{100 * at['true positive rate']:.1f} % ({low:.1f} to {high:.1f})"


def draw(folder: Path) -> None:
    """The runs that there are, as `cloister attack` draws them; apart, so that a page is wide enough for each."""
    from cloister.studies.attacks.found import read_attacks
    from cloister.studies.attacks.plots import attacks_plot

    made = [read_attacks(folder / _file(name)) for name in DRAWN if (folder / _file(name)).exists()]
    found = [one for one in made if one is not None]
    images, curves = ([replace(one, membership=[]) for one in found], [replace(one, inversion=[]) for one in found])
    for name, shown in (("images", images), ("curves", curves)):
        picture = DOCS / f"attacks-{name}.png"
        attacks_plot({one.title: one for one in shown}, picture)
        picture.chmod(0o644)  # the images are MNIST's


def _file(name: str) -> str:
    return name.replace(" ", "-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "attacks")
    wanted = parser.parse_args()
    for name in wanted.names or RUNS:
        row = measured(name, wanted.folder / _file(name))
        file = DOCS / "attacks.json"
        old = json.loads(file.read_text())["runs"] if file.exists() else {}
        runs = {one: {**old, name: row}[one] for one in RUNS if one in {*old, name}}
        about = {"command": "python benchmarks/attacks.py", "experiment": EXPERIMENT, "shadows": SHADOWS, "seed": SEED}
        file.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
        draw(wanted.folder)


if __name__ == "__main__":
    main()
