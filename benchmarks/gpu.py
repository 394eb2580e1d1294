"""The GPU suite, in one command:

    python benchmarks/gpu.py [--only NAME ...] [--rounds 20] [--json FILE]

Ours, pfl-research and a plain PyTorch loop on identical work in one run. pfl needs an environment of its own:
`python benchmarks/peers/environments.py pfl`, or, on a machine without network, `--carry DIR` and `--peers DIR`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from cloister.engine import Graphed
from measure import ROOT, Bench, Times, machine, peak, peer, say, timed
from works import WORKS

sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
CIFAR, EMNIST, RESNET = WORKS["cifar"], WORKS["emnist"], WORKS["resnet"]


class Suite:
    """Rows of results, shown and kept as they come."""

    def __init__(self, rounds: int, peers: Path | None, kept: Path | None) -> None:
        self.rounds, self.peers, self.kept = rounds, peers, kept
        self.rows: list[dict[str, Any]] = []
        self.peaks = {precision: peak("cuda", precision) for precision in ("exact", "tf32")}

    def row(self, work: str, ours: Times, against: str, theirs: Times, bar: float, more: dict[str, Any]) -> None:
        """One comparison."""
        ratio = theirs.median / ours.median
        found = {
            "work": work,
            "ours": asdict(ours),
            "peer": against,
            "theirs": asdict(theirs),
            "ratio": ratio,
            "bar": bar,
        }
        self.add({**found, **more})

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        say(json.dumps(row))
        if self.kept:
            whole = {"machine": machine("cuda"), "peak TFLOP/s": self.peaks, "rows": self.rows}
            self.kept.write_text(json.dumps(whole, indent=2) + "\n")

    def ours(self, bench: Bench, engine: Graphed) -> tuple[Times, dict[str, Any]]:
        apart = bench.apart(engine)
        times = timed(bench.round(engine), self.rounds)
        rate = bench.tflops(times.median)
        facts = {"engine": engine.name, "precision": bench.precision, "apart": apart, "TFLOP/s": rate}
        return times, {**facts, "of peak": rate / self.peaks[bench.precision]}

    def pfl(self, *words: str) -> Times:
        """pfl-research, in one process."""
        script = [str(ROOT / "benchmarks/peers/pfl_cifar.py"), "--device", "cuda", "--processes", "1", *words]
        if self.peers:
            found = peer([sys.executable, *script], {"PYTHONPATH": str(self.peers)})
        else:
            from environments import python_of

            found = peer([str(python_of("pfl")), *script])
        times: Times = found["times"]
        return times


def cifar(suite: Suite) -> None:
    """pfl's CIFAR-10 round, exact and in tf32, with 50 and with 1,000 clients in the cohort."""
    few = suite.pfl("--cohort", "50", "--rounds", str(suite.rounds), "--warmup", "3")
    many = suite.pfl("--cohort", "1000", "--rounds", "2", "--warmup", "1")
    for precision, bar in (("tf32", 60.0), ("exact", 40.0)):
        bench, engine = Bench(CIFAR, "cuda", precision), Graphed(50, compiled=True)
        times, facts = suite.ours(bench, engine)
        suite.row(f"{CIFAR}, {precision}", times, "pfl-research 0.6.0", few, bar, facts)
        large = bench.with_cohort(1000)
        times = timed(large.round(engine), suite.rounds)
        facts = {"engine": engine.name, "precision": precision, "TFLOP/s": large.tflops(times.median)}
        suite.row(f"{large.work}, {precision}", times, "pfl-research 0.6.0", many, 60.0, facts)


def by_hand(work: Any, bar: float, chunk: int) -> Callable[[Suite], None]:
    """Against a plain eager loop, both in tf32."""

    def play(suite: Suite) -> None:
        bench = Bench(work, "cuda", "tf32")
        times, facts = suite.ours(bench, Graphed(chunk, compiled=True))
        suite.row(f"{work}, tf32", times, "plain loop", timed(bench.by_hand, suite.rounds, warmup=1), bar, facts)

    return play


def growth(suite: Suite) -> None:
    """How cost grows with the cohort and with the clients that are registered (graphs, not compiled)."""
    for cohort in (10, 100, 1000, 10_000):
        engine = Graphed(min(cohort, 50))
        bench = Bench(replace(CIFAR, cohort=cohort, registered=cohort), "cuda", "tf32")
        torch.cuda.reset_peak_memory_stats()
        times = timed(bench.round(engine), 3 if cohort > 1000 else suite.rounds, warmup=1)
        memory = torch.cuda.max_memory_allocated() / 2**30
        suite.add({"growth": "cohort", "cohort": cohort, "ours": asdict(times), "GiB": memory})


PARTS: dict[str, Callable[[Suite], None]] = {
    "cifar": cifar,
    "emnist": by_hand(EMNIST, 60.0, 50),
    "growth": growth,
    "resnet": by_hand(RESNET, 5.0, 50),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", type=Path, help="a folder with pfl's packages, instead of an environment")
    options = parser.parse_args()
    suite = Suite(options.rounds, options.peers, options.json)
    for name in options.only:
        PARTS[name](suite)
    for row in suite.rows:
        if "ratio" in row:
            ours, theirs = row["ours"]["median"], row["theirs"]["median"]
            against = f"{row['peer']} {theirs:>9.1f} ms"
            print(f"{row['work']:<70} {ours:>9.2f} ms  {against}  {row['ratio']:>6.1f}x (bar {row['bar']:g})")


if __name__ == "__main__":
    main()
