"""Audits of audits: how tight lower bounds are, how often they are wrong, and what is found in every method.

    python benchmarks/audit.py                   all parts (less than an hour on two cores): docs/audit.json and .png
    python benchmarks/audit.py gaussian          one of: gaussian, methods, bugs, canaries; the others stay as they are
    python benchmarks/audit.py --device cuda canaries

Then `python benchmarks/documents.py` writes docs/audit.md. Noise is the mechanism's own: every trial is a lane of the
real round (`src/cloister/auditing/canary_clients.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import platform
import sys
import time
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import cloister as cl
from cloister.auditing import Kind, canary_clients
from cloister.auditing.audits import by_curve
from cloister.auditing.found import Audit, LowerBound
from cloister.auditing.likelihood import fitted
from cloister.auditing.plots import bounds_plot
from cloister.auditing.worst_case import Audited, Terms, audited
from cloister.errors import Note
from cloister.runs.files import write_json
from cloister.runs.request import Options

ROOT = Path(__file__).parent.parent
FILE, PICTURE = ROOT / "docs" / "audit.json", ROOT / "docs" / "audit.png"
DELTA = 1e-5
AUDITS = 1000
TRIALS = {1.0: 80_000, 2.0: 24_000, 4.0: 10_000, 8.0: 6_000}
"""By epsilon: as many as make the bound at least 0.85 of what is certified. A small epsilon is harder to see."""
FEW, FEW_AUDITS = 2_000, 20
"""Over 100 rounds 1,000 audits have so many trials each, and so many audits have as many as above."""
AT_ONCE = 20_000
CONFIDENCES = (0.95, 0.9999)
EACH = 0.999
"""Of every one of some fifty methods, so that all of their bounds hold together at 95 %."""


def right_guesses(ready: Audited, trials: int, audits: int, seed: int) -> list[int]:
    """How many guesses each of so many audits got right, each with noise of its own."""
    fed, w, rounds = ready.fed, ready.w, ready.rounds

    def play(runs: int, name: str) -> Any:
        own = replace(fed, streams=replace(fed.streams, run=f"{fed.streams.run} {seed} {name}"))
        return canary_clients.play(own, w, rounds, torch.arange(runs, device=w.device) % 2 == 1, ready.replaces)

    test = fitted(play(4000, "tuning"))
    parts = max(1, trials // AT_ONCE)  # of an audit at a time, or several audits
    each = max(1, AT_ONCE // trials)
    found: list[int] = []
    while len(found) < audits:
        rights = torch.zeros(each, dtype=torch.int64, device=w.device)
        for part in range(parts):
            seen = play(each * trials // parts, f"audit {len(found)} part {part}")
            rights += ((test.score(seen.shown) > 0) == seen.world).view(each, -1).sum(1)
        found += rights.tolist()
    return found[:audits]


def gaussian(device: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """The worst-case canary under Gaussian noise, one release and 100 rounds without sampling. What was measured
    before with as many trials is not measured again."""
    rows: list[dict[str, Any]] = _kept("gaussian")
    few, few_audits = max(100, round(scale * FEW)), max(1, round(scale * FEW_AUDITS))
    for rounds in (1, 100):
        for epsilon, trials in TRIALS.items():
            if any((row["rounds"], row["epsilon"], row["trials"]) == (rounds, epsilon, trials) for row in rows):
                continue
            method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1)
            terms = Terms(method, cl.full(), rounds, epsilon, DELTA, (1,), Options(device=device))
            ready = audited(terms, 0, width=1)

            @cache
            def bound(right: int, trials: int, confidence: float, ready: Audited = ready) -> float:
                return by_curve(right, trials, ready, DELTA, (1 - confidence) / 2)

            started = time.perf_counter()
            long = rounds == 1
            tight = right_guesses(ready, trials, AUDITS if long else few_audits, 1)
            often = tight if long else right_guesses(ready, few, AUDITS, 2)
            of = trials if long else few
            ratios = sorted(bound(right, trials, 0.95) / ready.certified for right in tight)
            row = {
                "rounds": rounds,
                "epsilon": epsilon,
                "certified": ready.certified,
                "trials": trials,
                "audits": len(tight),
                "mean_ratio": sum(ratios) / len(ratios),
                "tenth_smallest_ratio": ratios[len(ratios) // 10],
                "covered_audits": len(often),
                "covered_trials": of,
                **{
                    f"above_at_{confidence}": sum(bound(right, of, confidence) > ready.certified for right in often)
                    for confidence in CONFIDENCES
                },
                "seconds": time.perf_counter() - started,
            }
            rows.append(row)
            _keep("gaussian", rows)
            print(json.dumps(row), flush=True)
    return rows


def _kept(part: str) -> list[Any]:
    """What is in the file already."""
    return json.loads(FILE.read_text()).get(part, []) if FILE.exists() else []


def _keep(part: str, rows: list[dict[str, Any]]) -> None:
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    write_json(FILE, {**found, part: rows})


def _catalogue() -> Any:
    sys.path[:0] = [str(ROOT / "tests")]
    return importlib.import_module("contract.catalogue")


def methods(device: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """Every entry of the catalogue at epsilon 4, over a few rounds; what is in the file is not audited again."""
    catalogue, rows = _catalogue(), _kept("methods")
    for name, entry in sorted(catalogue.ENTRIES.items(), key=lambda each: " " in each[0]):  # options come last
        if any(row["label"] == name for row in rows):
            continue
        kind, cohort = next(iter(catalogue.cohorts_for(name).items()))
        method = entry.make(**{key: value for key, value in entry.settings.items() if key != "noise_multiplier"})
        if method.mechanism.place == "nowhere":
            continue
        rounds = 4 if kind == "cyclic" else 3
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)
            found = cl.audit(
                method,
                rounds=rounds,
                cohort=cohort,
                epsilon=4.0,
                delta=DELTA,
                clients=10,
                sizes=20,
                trials=max(1000, round(scale * 10_000)),
                confidence=EACH,
                device=device,
            ).labeled(name)
        rows.append({**found.to_json(), "cohort": kind})
        _keep("methods", rows)
        print(found.verdict, flush=True)
    return rows


def bugs(device: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """Bugs that were planted in the executed code of ten methods."""
    _catalogue()
    pytest, planted, rows = importlib.import_module("pytest"), importlib.import_module("auditing.bugs"), _kept("bugs")
    for name, bug in planted.BUGS.items():
        if any(row["bug"] == name for row in rows):
            continue
        with pytest.MonkeyPatch.context() as patch:
            bug.plant(patch)
            found = cl.audit(
                bug.make(), rounds=bug.rounds, cohort=bug.cohort, epsilon=4.0, delta=DELTA, clients=10, sizes=20,
                trials=bug.trials, device=device,
            )  # fmt: skip
        rows.append({**found.labeled(name).to_json(), "bug": name})
        _keep("bugs", rows)
        print(found.labeled(name).verdict, flush=True)
    return rows


def canaries(device: str, scale: float = 1.0) -> list[dict[str, Any]]:
    """How long an audit of 1,000 canaries takes, kind by kind."""
    asked: list[tuple[str, Any, dict[str, Any]]] = [
        ("worst-case client, 100 rounds", cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1), {"rounds": 100}),
        ("clients in one run, 10 rounds", cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1), {"rounds": 10}),
        ("worst-case sample, 10 steps", cl.methods.pfl(batch_size=20), {"rounds": 2, "sizes": 100}),
        ("samples in one run, 50 steps", cl.methods.pfl(batch_size=20), {"rounds": 1, "sizes": 1000}),
    ]
    rows = []
    for name, method, more in asked:
        kind: Kind = "one_run" if "one run" in name else "worst_case"
        started = time.perf_counter()
        found = cl.audit(
            method, epsilon=4.0, delta=DELTA, trials=1000, kinds=[kind], clients=2, device=device, **more
        )  # fmt: skip
        seconds = time.perf_counter() - started
        rows.append({"audit": name, "seconds": seconds, "lower": found.lower, "certified": found.certified})
        print(json.dumps(rows[-1]), flush=True)
    return rows


PARTS = {"gaussian": gaussian, "methods": methods, "bugs": bugs, "canaries": canaries}


def picture(found: dict[str, Any]) -> None:
    """Both bounds of every method, and of the planted bugs."""
    plain = ("cohort", "bug")
    rows = [*found.get("methods", []), *found.get("bugs", [])]
    audits = [Audit.from_json({key: value for key, value in row.items() if key not in plain}) for row in rows]
    if audits:
        bounds_plot([replace(one, bounds=tuple(_capped(b) for b in one.bounds)) for one in audits], PICTURE)


def _capped(bound: LowerBound) -> LowerBound:
    """Within the picture: a clip that is ignored gives everything away."""
    return replace(bound, epsilon=min(bound.epsilon, 12.0))


def main() -> None:
    """Measure what is asked for, and keep the rest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which figures; all without any")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=1.0, help="of the trials over 100 rounds, and of methods")
    parser.add_argument("--again", action="store_true", help="measure also what is in the file")
    asked = parser.parse_args()
    for part in asked.parts or PARTS:
        if asked.again:
            _keep(part, [])
        rows = PARTS[part](asked.device, asked.scale)
        found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
        found[part] = rows
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
        found.setdefault("measured", {})[part] = {
            "command": f"python benchmarks/audit.py {part}" + (f" --scale {asked.scale:g}" if asked.scale != 1 else ""),
            "device": asked.device if asked.device == "cpu" else torch.cuda.get_device_name(),
            "cores": os.cpu_count(),
            "load": round(busy, 1),
            "machine": platform.machine(),
        }
        write_json(FILE, found)
    picture(json.loads(FILE.read_text()))


if __name__ == "__main__":
    main()
