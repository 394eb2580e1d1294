"""The wheel in a fresh environment: its commands, from a folder that has nothing to do with the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAPER = "dp-fedsam-figure2"

_RUN = (
    *("run", "clients=40", "rounds=4", "sampling_rate=0.5", "clip_norm=1.0", "lr=0.5", "local_steps=2"),
    *("epsilon=4", "delta=1e-2", "engine=vectorized"),
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("--version",),
    ("methods",),
    ("keys", "pfl"),
    ("completion", "bash"),
    ("demo", "--folder", "runs/demo"),
    (*_RUN, "--folder", "runs/one"),
    ("show", "runs/one"),
    ("certificate", "runs/one", "-o", "certificate.html"),
    ("publish", "runs/one", "-o", "public"),
    ("verify", "public"),
    ("reproduce", PAPER, "--scale", "tiny"),
)


def try_wheel(wheel: Path, place: Path) -> list[str]:
    """Install it with the pinned versions and run the commands; what went wrong, in words."""
    environment = place / "environment"
    steps(sys.executable, "-m", "venv", str(environment))
    pip = (str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    pins = ("--constraint", str(ROOT / "constraints.txt"))
    steps(*pip, *pins, "torch")
    steps(*pip, *pins, str(wheel))
    folder = place / "folder"
    folder.mkdir()
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    own |= {"CLOISTER_DATA": str(place / "data"), "XDG_CACHE_HOME": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    wrong = []
    for words in COMMANDS:
        started = time.monotonic()
        done = subprocess.run(
            [str(environment / "bin" / "cloister"), *words], cwd=folder, env=own, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        sys.stdout.write(f"  cloister {' '.join(words)}: status {done.returncode}, {seconds:.1f} s\n")
        sys.stdout.flush()
        if done.returncode:
            wrong.append(f"cloister {' '.join(words)} ended with status {done.returncode}: {done.stderr[-2000:]}")
    return wrong


def steps(*words: str) -> None:
    """A command that has to succeed."""
    sys.stdout.write(f"  {' '.join(words)}\n")
    sys.stdout.flush()
    subprocess.run(words, check=True)
