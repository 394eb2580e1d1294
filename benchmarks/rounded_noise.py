"""Noise that is rounded to a grid, exactly, beside the same runs with floating-point noise: accuracy, and time.

    python benchmarks/rounded_noise.py [--data .data] [--rounds 60] [--timed 60] [--only-time] [--loaded]
    python benchmarks/rounded_noise.py --device cuda --rounds 100 --only-accuracy

MNIST among 500 clients, a CNN of 147,000 parameters: dp_fedavg (a client is protected; noise at the server) and pfl (a
sample is; noise in every step of every client). Accuracy: five seeds, with the same data and the same start in both
runs of a pair. Time: whole rounds in one process, in turns, with seeded and with secure randomness; beside the clock on
the wall, that of the processor, which other work on the machine does not change as much.

Written to docs/rounded-noise.json, and from there into docs/rounded-noise.md (`python benchmarks/documents.py`).
`--loaded` notes that the machine had other work to do. With `--device cuda` accuracies are of runs on a GPU; times are
always of the processor. `--only-time` and `--only-accuracy` keep what the file has of the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from torch import nn

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "rounded-noise.json"
SEEDS = 5
BAR = 1.15


def cnn() -> nn.Module:
    """Of 147,146 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def works() -> dict[str, dict[str, Any]]:
    """What is run, by name: a method, a cohort and what else `cloister.run` is given."""
    import cloister as cl

    user = cl.methods.dp_fedavg(clip_norm=0.5, lr=0.1, batch_size=20, local_steps=3)
    sample = cl.methods.pfl(clip_norm=1.0, lr=0.1, batch_size=50, local_epochs=1)
    usual = {"model": cnn, "delta": 1e-4}
    return {
        "dp_fedavg": {"method": user, "cohort": cl.fixed_size(10), "epsilon": 20.0, **usual},
        "pfl": {"method": sample, "cohort": cl.fixed_size(4), "epsilon": 8.0, **usual},
    }


def learning() -> dict[str, dict[str, Any]]:
    """What else accuracies are of: a cohort in which something is learned in few rounds. Where all is noise, two kinds
    of noise do not differ. The small cohorts above are for times: the smaller, the more noise there is in a round."""
    import cloister as cl

    return {"dp_fedavg": {"cohort": cl.poisson(0.2), "epsilon": 8.0}, "pfl": {}}


def accuracies(task: Any, work: dict[str, Any], rounds: int, device: str) -> dict[str, Any]:
    """Both runs of every seed, and the mean difference with its standard error."""
    import cloister as cl

    pairs = []
    for seed in range(SEEDS):
        scores = []
        for rounded in (False, True):
            found = cl.run(
                **work,
                task=task,
                rounds=rounds,
                seed=seed,
                rounded_noise=rounded,
                device=device,
                engine="loop" if device == "cpu" else "graphed",
                evaluate_every=rounds,
                progress=False,
            )
            scores.append(float(found.accuracy or 0.0))
        pairs.append(scores)
        print(f"  seed {seed}: floats {scores[0]:.4f}, rounded {scores[1]:.4f}", flush=True)
    apart = [rounded - floats for floats, rounded in pairs]
    spread = [statistics.stdev(column) for column in zip(*pairs, strict=True)]
    return {
        "floats": [floats for floats, _ in pairs],
        "rounded": [rounded for _, rounded in pairs],
        "difference": statistics.mean(apart),
        "standard error": statistics.stdev(apart) / SEEDS**0.5,
        "deviation over seeds": max(spread),
    }


def times(task: Any, work: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Whole rounds with seeded and secure randomness, with floats and rounded, in turns."""
    from cloister.core.arguments import flat_arguments
    from cloister.engine import Loop
    from cloister.privacy.ledger import Ledger
    from cloister.round import run_round
    from cloister.runs.prepare import prepare
    from cloister.runs.request import Request

    plays = {}
    for secure in (False, True):
        for rounded in (False, True):
            settings = {**work, "task": task, "rounds": rounds + 3, "secure_rng": secure, "rounded_noise": rounded}
            ready = prepare(flat_arguments(Request)(**settings))
            plays[f"{'secure' if secure else 'seeded'} {'rounded' if rounded else 'floats'}"] = _player(
                ready.fed, ready.w, Ledger, run_round, Loop()
            )
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in plays}
    for number in range(1, rounds + 3):
        for name, play in plays.items():
            wall, cpu = time.perf_counter(), time.process_time()
            play(number)
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    found = {
        name: {
            clock: 1000 * statistics.median(column)
            for clock, column in zip(_CLOCKS, zip(*rows[2:], strict=True), strict=True)
        }
        for name, rows in seconds.items()
    }
    ratios = {
        f"{kind} {clock} ratio": found[f"{kind} rounded"][clock] / found[f"{kind} floats"][clock]
        for kind in _KINDS
        for clock in _CLOCKS
    }
    return {**found, **ratios}


_CLOCKS = ("wall", "cpu")
_KINDS = ("seeded", "secure")


def _player(fed: Any, w: Any, ledgers: Any, run_round: Any, engine: Any) -> Any:
    ledger, state = ledgers.create(None, "benchmark", {}), fed.method.init(w)
    return lambda number: run_round(fed, ledger, engine, number, w, state)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("CLOISTER_DATA", ".data"))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--timed", type=int, default=60)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--only-time", action="store_true")
    only.add_argument("--only-accuracy", action="store_true")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of the accuracies")
    parser.add_argument("--loaded", action="store_true")
    wanted = parser.parse_args()
    os.environ["CLOISTER_DATA"] = wanted.data
    import cloister as cl
    from measure import machine

    task = cl.data.mnist(cl.data.iid(500))
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept = before if wanted.only_accuracy else {}  # what was said of times
    told = before if wanted.only_time else {}  # of accuracies
    rounds, device = told.get("rounds", wanted.rounds), told.get("device", wanted.device)
    timed = kept.get("timed", wanted.timed)
    place = "" if device == "cpu" else f" --device {device}"
    found: dict[str, Any] = {
        "command": f"python benchmarks/rounded_noise.py --rounds {rounds} --timed {timed}{place}",
        "machine": kept.get("machine") or machine("cpu"),
        "quiet": kept.get("quiet", not wanted.loaded),
        "timed": timed,
        "rounds": rounds,
        "device": device,
        "accuracy on": told.get("accuracy on") or told.get("machine") or machine(device),
        "bar": BAR,
        "works": {name: dict(before.get("works", {}).get(name, {})) for name in works()},
    }
    for name, work in works().items():
        print(name, flush=True)
        row = found["works"][name]
        if not wanted.only_accuracy or "time" not in row:
            row["time"] = times(task, work, timed)
        print("  " + ", ".join(f"{name} {value:.3f}" for name, value in row["time"].items() if "ratio" in name))
        if not wanted.only_time or "accuracy" not in row:
            row["accuracy"] = accuracies(task, {**work, **learning()[name]}, rounds, device)
        FILE.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
