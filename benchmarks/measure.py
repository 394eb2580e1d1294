"""Timing: medians over rounds after a warm-up, everything that is compared in one run on one machine."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from cloister.core.precision import multiplying
from cloister.engine import Loop
from cloister.privacy.ledger import Ledger
from cloister.round import Engine, cohort_total, run_round
from cloister.server.cohorts import fixed_size
from works import Work, federation, flops, plain_loop

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Times:
    """Milliseconds of rounds: the median, and the middle eight tenths."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        tenths = statistics.quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else seconds * 2
        return cls(1000 * statistics.median(seconds), 1000 * tenths[0], 1000 * tenths[-1], len(seconds))


def timed(play: Callable[[int], Any], rounds: int, warmup: int = 3) -> Times:
    """Play rounds one after the other, as a run does.

    On a GPU a round lasts from the moment at which the device has finished the one before to the moment at which it has
    finished this one: the host may already be busy with the next.
    """
    if not torch.cuda.is_available():
        return in_turns({"": play}, rounds, warmup)[""]
    ends = []
    for number in range(1, warmup + rounds + 1):
        play(number)
        ends.append(torch.cuda.Event(enable_timing=True))
        ends[-1].record()
    torch.cuda.synchronize()
    return Times.of([before.elapsed_time(after) / 1000 for before, after in pairwise(ends[warmup - 1 :])])


def in_turns(plays: dict[str, Callable[[int], Any]], rounds: int, warmup: int = 2) -> dict[str, Times]:
    """The same for several ways that take turns, so that whatever else the machine does hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(1, warmup + rounds + 1):
        for name, play in plays.items():
            started = time.perf_counter()
            play(number)
            _wait()
            seconds[name].append(time.perf_counter() - started)
    return {name: Times.of(found[warmup:]) for name, found in seconds.items()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Bench:
    """One piece of work on one device, ready to be played by any engine or by hand."""

    work: Work
    device: str
    precision: str = "exact"

    def __post_init__(self) -> None:
        if self.fed is not None:
            return
        fed, w, module = federation(self.work, self.device, self.precision)
        for name, value in {"fed": fed, "w": w, "module": module}.items():
            object.__setattr__(self, name, value)

    fed: Any = None
    w: Any = None
    module: Any = None

    def with_cohort(self, size: int) -> Bench:
        """The same model and data with more clients in a round; what was compiled can be used again."""
        other = replace(self, work=replace(self.work, cohort=size))
        object.__setattr__(other, "fed", replace(self.fed, cohort=fixed_size(size)))
        return other

    def round(self, engine: Engine) -> Callable[[int], Any]:
        """A whole round with noise and the server's step, as a run has it (without a ledger on the disk)."""
        ledger = Ledger.create(None, "benchmark", {})

        def play(number: int) -> Any:
            return run_round(self.fed, ledger, engine, number, self.w, self.fed.method.init(self.w))

        return play

    def by_hand(self, number: int) -> Any:
        """The same by a plain PyTorch loop."""
        with multiplying(self.precision, self.w.device):
            cohort = torch.arange(self.work.cohort)
            return plain_loop(self.work, self.fed, self.module, self.w, number, cohort)

    def apart(self, engine: Engine) -> float:
        """How far an engine's sum over a cohort is from the loop's, relative to its size."""
        cohort = torch.arange(self.work.cohort)
        expected, _ = cohort_total(self.fed, Loop(), 1, self.w, cohort)
        found, _ = cohort_total(self.fed, engine, 1, self.w, cohort)
        return float((found - expected).norm() / expected.norm())

    def tflops(self, milliseconds: float) -> float:
        """The rate that a round of so many milliseconds amounts to."""
        return flops(self.work, self.module) / milliseconds / 1e9


def peak(device: str, precision: str = "exact", size: int = 8192) -> float:
    """TFLOP/s of a large matrix product."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    with multiplying(precision, torch.device(device)):
        return 2 * size**3 / timed(lambda _: a @ b, 10).median / 1e9


class Suite:
    """Rows of results, shown and kept as they come."""

    def __init__(self, device: str, rounds: int, kept: Path | None) -> None:
        self.device, self.rounds, self.kept = device, rounds, kept
        self.rows: list[dict[str, Any]] = []
        kinds = (
            {"exact": peak("cpu", size=2048)} if device == "cpu" else {k: peak("cuda", k) for k in ("exact", "tf32")}
        )
        self.peaks = kinds

    def add(self, row: dict[str, Any]) -> None:
        """Show a row and keep all so far."""
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if self.kept:
            whole = {"machine": machine(self.device), "peak TFLOP/s": self.peaks, "rows": self.rows}
            self.kept.write_text(json.dumps(whole, indent=2) + "\n")

    def row(self, work: str, ours: Times, against: str, theirs: Times, bar: float, **more: Any) -> None:
        """One comparison."""
        found = {"work": work, "ours": asdict(ours), "peer": against, "theirs": asdict(theirs)}
        self.add({**found, "ratio": theirs.median / ours.median, "bar": bar, **more})

    def facts(self, bench: Bench, engine: Engine, times: Times) -> dict[str, Any]:
        """How an engine did its work: agreement with the loop, and its rate."""
        rate = bench.tflops(times.median)
        found = {"engine": engine.name, "precision": bench.precision, "apart": bench.apart(engine)}
        return {**found, "TFLOP/s": rate, "of peak": rate / self.peaks[bench.precision]}

    def table(self) -> str:
        """The comparisons, a line each."""
        lines = []
        for row in self.rows:
            if "ratio" in row:
                ours, theirs = row["ours"]["median"], row["theirs"]["median"]
                against = f"{row['peer']} {theirs:>9.1f} ms"
                lines.append(
                    f"{row['work']:<70} {ours:>9.2f} ms  {against}  {row['ratio']:>6.2f}x (bar {row['bar']:.2f})"
                )
        return "\n".join(lines)


def peer(command: list[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a peer's script in its own interpreter; its last line is JSON."""
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False
    )
    if done.returncode:
        raise SystemExit(f"Expected {' '.join(command)} to end well, found:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    found["times"] = Times.of(found.pop("seconds"))
    return found


def machine(device: str) -> str:
    """What the figures were measured on."""
    gpu = f"{torch.cuda.get_device_name()}, " if device == "cuda" else ""
    return f"{gpu}{os.cpu_count()} CPU cores, Python {platform.python_version()}, torch {torch.__version__}"
