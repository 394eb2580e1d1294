"""Memory of private steps: beside the same training without privacy, and within a budget.

    python benchmarks/memory.py

Every case runs in a process of its own; what is shown is how much its largest resident set grew over that before the
first round, in MiB (Linux).
"""

from __future__ import annotations

import multiprocessing
import resource
from dataclasses import replace
from typing import Any

import torch

import cloister as cl
from cloister.engine import Vectorized, chunk_size
from measure import Bench
from works import Work

SCATTER = Work(
    "scatter_linear", (81, 7, 7), 10, 10, 2, batch_size=512, registered=10, samples=2048, lr=0.05, pixels=False
)
CNN = Work("pfl_benchmark_cnn", (3, 32, 32), 10, 10, 2, batch_size=64, registered=10, samples=256, lr=0.01)
BUDGET = 512 * 2**20


def grown(work: Work, private: bool, budget: int | None, tell: Any) -> None:
    """Two rounds; tells the growth in MiB and how many clients went together."""
    torch.set_num_threads(2)
    bench = Bench(work, "cpu")
    steps: dict[str, Any] = {"lr": work.lr, "batch_size": work.batch_size}
    method = (
        cl.methods.pfl(
            clip_norm=1.0, local_epochs=work.steps, local_epoch="batch", momentum=0.0, noise_multiplier=1.0, **steps
        )
        if private
        else cl.methods.fedavg(local_steps=work.steps, **steps)
    )
    object.__setattr__(bench, "fed", replace(bench.fed, method=method, cohort=cl.full()))
    chunk = chunk_size(bench.fed, bench.w, budget) if budget else work.cohort
    play = bench.round(Vectorized(chunk))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in (1, 2):
        play(number)
    tell.send(((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, chunk))


def measured(work: Work, private: bool, budget: int | None = None) -> tuple[float, int]:
    """The same in a process of its own."""
    context, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=grown, args=(work, private, budget, there))
    process.start()
    found: tuple[float, int] = context.recv()
    process.join()
    return found


def main() -> None:
    plain, _ = measured(SCATTER, False)
    private, _ = measured(SCATTER, True)
    print(f"{SCATTER}: {private:.0f} MiB private, {plain:.0f} MiB plain, {private / plain:.2f} times (bar 2)")
    within, chunk = measured(CNN, True, BUDGET)
    whole, _ = measured(CNN, True)
    print(
        f"{CNN}: {within:.0f} MiB in chunks of {chunk} for a budget of {BUDGET >> 20} MiB; {whole:.0f} MiB all at once"
    )


if __name__ == "__main__":
    main()
