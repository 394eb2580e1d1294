"""The CPU suite, in one command:

    python benchmarks/cpu.py [--only NAME ...] [--rounds 20] [--json FILE]

Ours, a plain PyTorch loop, pfl-research and the Flower simulation on identical work in one run. The peers have
environments of their own: `python benchmarks/peers/environments.py` makes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import cloister as cl
from cloister.engine import Loop, Vectorized, choose, chunk_size, memory_budget
from measure import ROOT, Bench, Suite, Times, in_turns, peer, timed
from works import WORKS, Work

sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
CIFAR, DIGITS = replace(WORKS["cifar"], cohort=10), WORKS["digits"]  # a fifth of the clients: a round takes seconds
SMALL = Work("mlp", (8,), 10, cohort=50, steps=5, batch_size=10, registered=1000, samples=10)


def run_peer(name: str, script: str, *words: str) -> Times:
    """A peer's script in the peer's environment."""
    from environments import make, python_of

    make(name)
    times: Times = peer([str(python_of(name)), str(ROOT / "benchmarks" / "peers" / script), *words])["times"]
    return times


def digits(suite: Suite) -> None:
    """A small model: everything in one batched computation."""
    bench = Bench(DIGITS, "cpu")
    chunk = chunk_size(bench.fed, bench.w, memory_budget(torch.device("cpu")))
    engine = choose(bench.fed, bench.w, chunk, suite.rounds)
    found = in_turns({"ours": bench.round(engine), "plain": bench.by_hand}, 5 * suite.rounds)
    facts = suite.facts(bench, engine, found["ours"])
    suite.row(str(DIGITS), found["ours"], "plain loop", found["plain"], 10.0, **facts)
    flower = run_peer("flower", "flower_digits.py", "--rounds", str(suite.rounds))
    again = timed(bench.round(engine), 5 * suite.rounds)
    suite.row(str(DIGITS), again, "Flower 1.41.0 simulation", flower, 50.0, engine=engine.name)


def cifar(suite: Suite) -> None:
    """Convolutions: client by client, each in a process with one core."""
    bench = Bench(CIFAR, "cpu")
    engine = Loop(workers=torch.get_num_threads(), processes=True, channels_last=True)
    ways: dict[str, Callable[[int], Any]] = {
        "ours": bench.round(engine),
        "one at a time": bench.round(Loop()),
        "plain": bench.by_hand,
    }
    found = in_turns(ways, suite.rounds, warmup=1)
    facts = suite.facts(bench, engine, found["ours"])
    facts |= {"engine": f"loop, {engine.workers} processes", "one at a time": asdict(found["one at a time"])}
    suite.row(str(CIFAR), found["ours"], "plain loop", found["plain"], 1.0, **facts)
    for processes in (1, 2):
        words = ["--cohort", "10", "--rounds", str(suite.rounds), "--warmup", "1", "--processes", str(processes)]
        theirs = run_peer("pfl", "pfl_cifar.py", *words)
        name = f"pfl-research 0.6.0, {processes} process{'es' if processes > 1 else ''}"
        suite.row(str(CIFAR), found["ours"], name, theirs, 1.1, engine=facts["engine"])


def registered(suite: Suite) -> None:
    """A million registered clients against a thousand, same cohort."""
    for name, cohort in (("fixed_size", cl.fixed_size(50)), ("poisson", None)):
        plays = {}
        for count in (1000, 1_000_000):
            bench = Bench(replace(SMALL, registered=count), "cpu")
            chosen = cohort or cl.poisson(50 / count)
            plays[str(count)] = replace(bench, fed=replace(bench.fed, cohort=chosen)).round(Vectorized(200))
        found = in_turns(plays, 5 * suite.rounds, warmup=5)
        few, many = found["1000"], found["1000000"]
        suite.row(f"{SMALL}, {name}, 1,000,000 registered", many, "ourselves with 1,000 registered", few, 1 / 1.1)


def growth(suite: Suite) -> None:
    """How cost grows with the cohort, the model and the clients that are registered."""
    for cohort in (10, 100, 1000, 10_000):
        bench = Bench(replace(SMALL, registered=cohort, cohort=cohort), "cpu")
        chunk = chunk_size(bench.fed, bench.w, memory_budget(torch.device("cpu")))
        times = timed(bench.round(Vectorized(chunk)), 5 if cohort > 1000 else suite.rounds)
        suite.add({"growth": "cohort", "cohort": cohort, "ours": asdict(times)})
    for hidden in (10, 100, 1000, 10_000, 150_000):
        bench = Bench(replace(DIGITS, cohort=10, registered=10, hidden=hidden), "cpu")
        chunk = chunk_size(bench.fed, bench.w, memory_budget(torch.device("cpu")))
        engine = choose(bench.fed, bench.w, chunk, suite.rounds)
        times = timed(bench.round(engine), 5 if hidden > 1000 else suite.rounds, warmup=1)
        parameters = bench.w.numel()
        suite.add({"growth": "model", "parameters": parameters, "ours": asdict(times), "engine": engine.name})
    for count in (100, 1000, 10_000, 100_000, 1_000_000):
        bench = Bench(replace(SMALL, registered=count), "cpu")
        times = timed(bench.round(Vectorized(200)), 5 * suite.rounds)
        suite.add({"growth": "registered", "registered": count, "ours": asdict(times)})


PARTS = {"digits": digits, "cifar": cifar, "registered": registered, "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    suite = Suite("cpu", options.rounds, options.json)
    for name in options.only:
        PARTS[name](suite)
    print(suite.table())


if __name__ == "__main__":
    main()
