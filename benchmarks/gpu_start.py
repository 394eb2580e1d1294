"""From start to first round on a GPU, and what compiling costs over a run, in one command:

    python benchmarks/gpu_start.py [--rounds 400] [--json docs/speed-gpu-start.json]

The EMNIST network of a million parameters, 3,000 clients, each of whom joins a round with probability 0.04, 30 local
steps of 32 samples, tf32. Every row is a process of its own: with empty caches, then with those that it left.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]


def play(engine_name: str, rounds: int) -> dict[str, Any]:
    """Build an engine and play rounds, in this process, with torch and the data already there."""
    import torch

    import cloister as cl
    from cloister.engine import build, fusion
    from measure import Bench, machine
    from works import Work

    compiled = []
    compile_one = fusion._compile

    def counted(*arguments: Any) -> Any:
        compiled.append(time.perf_counter())
        return compile_one(*arguments)

    mock.patch.object(fusion, "_compile", counted).start()
    work = Work("emnist_cnn", (1, 28, 28), 62, 120, steps=30, batch_size=32, registered=3000, samples=230, lr=0.01)
    bench = Bench(work, "cuda", "tf32")
    bench = replace(bench, fed=replace(bench.fed, cohort=cl.poisson(0.04)))
    torch.cuda.synchronize()
    start = time.perf_counter()
    engine = build(engine_name, bench.fed, bench.w, rounds=rounds)
    round, ends = bench.round(engine), []
    for number in range(1, rounds + 1):
        round(number)
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
    each = [after - before for before, after in zip([start, *ends], ends, strict=False)]
    steady = statistics.median(each[-min(100, max(1, rounds // 2)) :])
    switch = max(getattr(engine, "compiled_from", 1) - 1, 0)
    return {
        "engine": engine.name,
        "compiled from round": getattr(engine, "compiled_from", None),
        "rounds": rounds,
        "first round, s": ends[0] - start,
        "steady round, s": steady,
        "whole, s": ends[-1] - start,
        "whole over steady": (ends[-1] - start) / (rounds * steady),
        "programs compiled": len(compiled),
        "compiled after the switch or the first round": sum(at > ends[switch] for at in compiled),
        "machine": machine("cuda"),
    }


def fresh(folder: Path, *words: str) -> dict[str, Any]:
    """The same in a process of its own, with caches in this folder."""
    names = {"XDG_CACHE_HOME": "", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    caches = {name: str(folder / part) for name, part in names.items()}
    done = subprocess.run(
        [sys.executable, __file__, "--play", *words],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, **caches}, check=False,
    )  # fmt: skip
    if done.returncode:
        return {"error": done.stderr[-1500:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--only", nargs="*", default=["graphed", "compiled", "auto"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--play", nargs=2, metavar=("ENGINE", "ROUNDS"))
    options = parser.parse_args()
    if options.play:
        print(json.dumps(play(options.play[0], int(options.play[1]))))
        return
    rows = []
    for engine in options.only:
        rounds = options.rounds if engine == "auto" else 12
        with tempfile.TemporaryDirectory() as folder:
            for caches in ("empty", "of the run before"):
                rows.append({"caches": caches, **fresh(Path(folder), engine, str(rounds))})
                print(json.dumps(rows[-1]), flush=True)
                if options.json:
                    options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
