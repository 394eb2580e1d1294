"""The GPU suite, in one command:

    python benchmarks/gpu.py [--only NAME ...] [--rounds 20] [--json FILE]

Ours, pfl-research and a plain PyTorch loop on identical work in one run. pfl needs an environment of its own:
`python benchmarks/peers/environments.py pfl`, or, on a machine without network, `--carry DIR` and `--peers DIR`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from cloister.engine import Graphed
from measure import ROOT, Bench, Suite, Times, peer, timed
from works import WORKS, Work

sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
CIFAR, EMNIST, RESNET = WORKS["cifar"], WORKS["emnist"], WORKS["resnet"]


def pfl(folder: Path | None, *words: str) -> Times:
    """pfl-research in one process, from an environment of its own or from a folder with its packages."""
    script = [str(ROOT / "benchmarks/peers/pfl_cifar.py"), "--device", "cuda", "--processes", "1", *words]
    if folder is not None:
        found = peer([sys.executable, *script], {"PYTHONPATH": str(folder)})
    else:
        from environments import make, python_of

        make("pfl")
        found = peer([str(python_of("pfl")), *script])
    times: Times = found["times"]
    return times


def cifar(suite: Suite, folder: Path | None) -> None:
    """pfl's CIFAR-10 round, exact and in tf32."""
    theirs = pfl(folder, "--cohort", "50", "--rounds", str(suite.rounds), "--warmup", "3")
    for precision, bar in (("tf32", 100.0), ("exact", 60.0)):
        bench, engine = Bench(CIFAR, "cuda", precision), Graphed(50, compiled=True)
        times = timed(bench.round(engine), suite.rounds)
        facts = suite.facts(bench, engine, times)
        suite.row(f"{CIFAR}, {precision}", times, "pfl-research 0.6.0", theirs, bar, **facts)


def cifar_1000(suite: Suite, folder: Path | None) -> None:
    """The same with 1,000 clients in the cohort, of which pfl takes half a minute each."""
    many = pfl(folder, "--cohort", "1000", "--rounds", "2", "--warmup", "1")
    for precision in ("tf32", "exact"):
        bench, engine = Bench(CIFAR, "cuda", precision), Graphed(50, compiled=True)
        large = bench.with_cohort(1000)
        times = timed(large.round(engine), suite.rounds)
        facts = {"engine": engine.name, "precision": precision, "TFLOP/s": large.tflops(times.median)}
        suite.row(f"{large.work}, {precision}", times, "pfl-research 0.6.0", many, 60.0, **facts)


def by_hand(work: Work, bar: float, compiled: bool) -> Callable[[Suite], None]:
    """Against a plain eager loop, both in tf32."""

    def play(suite: Suite) -> None:
        bench, engine = Bench(work, "cuda", "tf32"), Graphed(50, compiled=compiled)
        times = timed(bench.round(engine), suite.rounds)
        plain = timed(bench.by_hand, suite.rounds, warmup=1)
        suite.row(f"{work}, tf32", times, "plain loop", plain, bar, **suite.facts(bench, engine, times))

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


BESIDE_PFL = {"cifar": cifar, "cifar_1000": cifar_1000}
PARTS: dict[str, Callable[[Suite], None]] = {
    "emnist": by_hand(EMNIST, 60.0, compiled=True),
    "growth": growth,
    "resnet": by_hand(RESNET, 5.0, compiled=False),
    "resnet_compiled": by_hand(RESNET, 5.0, compiled=True),  # sixty layers take minutes to compile
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = [*BESIDE_PFL, *PARTS]
    parser.add_argument("--only", nargs="*", choices=everything, default=everything)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", type=Path, help="a folder with pfl's packages, instead of an environment")
    options = parser.parse_args()
    suite = Suite("cuda", options.rounds, options.json)
    for name in options.only:
        if name in BESIDE_PFL:
            BESIDE_PFL[name](suite, options.peers)
        else:
            PARTS[name](suite)
    print(suite.table())


if __name__ == "__main__":
    main()
