"""What the first answer costs: commands that need no tensors, and imports beside `import torch`, in fresh processes.

    python benchmarks/startup.py [--runs 5] [--only methods,keys] [--json docs/startup.json]

Everything is started once a round, one after the other, so that a machine that becomes busy slows all of it down; each
figure is the median over rounds, and its ratio that to `import torch` in the same round. A first round is not counted:
after it the files are in the system's cache. Other packages are measured where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

TORCH = "import torch"
IMPORTS = {
    TORCH: "import torch",
    "import cloister": "import cloister",
    "cloister.run, .data.digits, .methods": "import cloister as cl\ncl.run, cl.data.digits, cl.methods.dp_fedavg",
}
PEERS = ("opacus", "flwr", "pfl")
COMMANDS = (
    *("--version", "--help", "run --help", "run method=pfl --help", "plan --help", "methods", "methods pfl", "keys"),
    *("keys pfl data=mnist", "data list", "run colour=red", "run method=nothing", "show RUN"),
)


def works(run: Path) -> dict[str, list[str]]:
    """What is started, by name."""
    found = {name: [sys.executable, "-c", code] for name, code in IMPORTS.items()}
    found |= {f"import {name}": [sys.executable, "-c", f"import {name}"] for name in PEERS if _is_there(name)}
    return found | {
        f"cloister {words}": [sys.executable, "-m", "cloister", *words.replace("RUN", str(run)).split()]
        for words in COMMANDS
    }


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def seconds(command: list[str]) -> float:
    """How long a fresh process takes."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"})
    taken = time.perf_counter() - started
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        raise SystemExit(f"{command} failed: {done.stderr}")
    return taken


def measure(chosen: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Seconds of everything in every round but the first."""
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for at in range(rounds + 1):
        for name, command in chosen.items():
            taken = seconds(command)
            if at:
                found[name].append(taken)
    return found


def some_run(folder: Path) -> Path:
    """A finished run, for `cloister show`."""
    keys = "rounds=4 clients=50 sampling_rate=0.5 clip_norm=1.0 local_steps=2 epsilon=4 delta=1e-3"
    command = [sys.executable, "-m", "cloister", "run", *keys.split(), "--quiet", "--folder", str(folder / "run")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="rounds that are counted")
    parser.add_argument("--only", default="", help="names that contain one of these words, and import torch")
    parser.add_argument("--json", type=Path, help="where to keep the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = [word for word in options.only.split(",") if word]
        asked = works(some_run(Path(folder)) if not words or "show" in words else Path(folder))
        chosen = {
            name: one for name, one in asked.items() if name == TORCH or not words or any(w in name for w in words)
        }
        found = measure(chosen, options.runs)
    rows = []
    for name, taken in found.items():
        ratio = statistics.median(one / other for one, other in zip(taken, found[TORCH], strict=True))
        rows.append({"what": name, "seconds": round(statistics.median(taken), 3), "of import torch": round(ratio, 3)})
        print(f"{name:<36}{rows[-1]['seconds']:>8.2f} s{ratio:>8.2f} of import torch")
    if options.json:
        software = {name: version(name) for name in ("torch", "numpy", "typer", *filter(_is_there, PEERS))}
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        kept = {"command": " ".join(["benchmarks/startup.py", *sys.argv[1:]]), "rounds": options.runs}
        text = json.dumps({**kept, "software": software, "machine": machine, "rows": rows}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
