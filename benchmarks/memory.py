"""Memory: of private steps, beside the same training without privacy and within a budget; and of runs whose samples lie
on the disk, with a thousand registered clients and with a million (Linux).

    python benchmarks/memory.py [--only steps registered] [--folder /tmp] [--json docs/memory.json]

Every case runs in a process of its own. Of steps it is shown how much the largest resident set grew over that before
the first round, in MiB. Of runs it is the largest resident set of the whole process, from its start to the end of a run
by `cloister.run`, files that are mapped included: what a machine has to have. Anonymous memory, which is what remains
without pages of files, is shown beside it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
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
    found: tuple[float, int] = alone(grown, work, private, budget)
    return found


REGISTERED = (1000, 1_000_000)
SAMPLES, FEATURES, CLASSES, COHORT, ROUNDS = 10, 64, 10, 100, 40
BAR = 1.2


def write(folder: Path, clients: int) -> None:
    """So many clients of equal size, as arrays on the disk, with a thousand samples to test on."""
    folder.mkdir()
    rows = clients * SAMPLES
    inputs = np.lib.format.open_memmap(folder / "inputs.npy", "w+", np.float32, (rows, FEATURES))
    labels = np.lib.format.open_memmap(folder / "labels.npy", "w+", np.int64, (rows,))
    for first in range(0, rows, 100_000):
        some = slice(first, min(first + 100_000, rows))
        inputs[some], labels[some] = made_up(some.stop - first, first)
    inputs.flush()
    labels.flush()
    np.save(folder / "sizes.npy", np.full(clients, SAMPLES))
    for file, values in zip(("test-inputs.npy", "test-labels.npy"), made_up(1000, 2**31), strict=True):
        np.save(folder / file, values)


def written(folder: str, clients: int, tell: Any) -> None:
    """The same, in a process of its own."""
    write(Path(folder), clients)
    tell.send(None)


def made_up(rows: int, seed: int) -> tuple[Any, Any]:
    """Samples of classes that can be told apart."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, CLASSES, rows)
    inputs = random.standard_normal((rows, FEATURES), dtype=np.float32)
    inputs[np.arange(rows), labels] += 3
    return inputs, labels


class Anonymous(threading.Thread):
    """The most anonymous memory of this process, looked at a hundred times a second, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.over = 0.0, False

    def run(self) -> None:
        while not self.over:
            self.most = max(self.most, status("RssAnon"))
            time.sleep(0.01)


def status(name: str) -> float:
    """A line of /proc/self/status, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def on_disk(folder: str, clients: int, tell: Any) -> None:
    """A private run of some rounds over samples on the disk; tells the memory of the whole process, and its times."""
    torch.set_num_threads(2)
    watch = Anonymous()
    watch.start()
    started = time.perf_counter()
    task = cl.data.from_path(folder, classes=CLASSES, model=lambda: cl.models.mlp((FEATURES,), CLASSES))
    loaded = time.perf_counter()
    seconds: list[float] = []

    class Clock(cl.Callback):
        def on_round(self, record: Any) -> None:
            seconds.append(time.perf_counter())

    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=5, batch_size=SAMPLES, noise_multiplier=1.0)
    found = cl.run(
        method,
        task,
        rounds=ROUNDS,
        cohort=cl.poisson(COHORT / clients),
        delta=1e-3 / clients,
        engine="vectorized",
        evaluate_every=ROUNDS,
        progress=False,
        callbacks=[Clock()],
    )
    watch.over = True
    watch.join()
    rounds = np.diff(seconds[ROUNDS // 4 :])
    tell.send(
        {
            "clients": clients,
            "file_mib": round(sum(f.stat().st_size for f in Path(folder).iterdir()) / 2**20, 1),
            "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
            "peak_anonymous_mib": round(watch.most, 1),
            "end_file_mib": round(status("RssFile"), 1),
            "load_s": round(loaded - started, 2),
            "prepare_s": round(seconds[0] - loaded, 2),
            "round_ms": round(1000 * float(np.median(rounds)), 2),
            "accuracy": found.accuracy,
            "cohort": COHORT,
        }
    )


def alone(target: Any, *arguments: Any) -> Any:
    """What a function tells, in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(*arguments, there))
    process.start()
    there.close()
    found = here.recv()
    process.join()
    return found


def registered(folder: Path) -> dict[str, Any]:
    """A run over a million registered clients, against one over a thousand, with the same cohort."""
    found = []
    for clients in REGISTERED:
        with tempfile.TemporaryDirectory(prefix="cloister-memory-", dir=folder) as place:
            alone(written, f"{place}/people", clients)
            found.append(alone(on_disk, f"{place}/people", clients))
    few, many = found
    ratio, time_ratio = many["peak_mib"] / few["peak_mib"], many["round_ms"] / few["round_ms"]
    for one in found:
        print(
            f"{one['clients']:,} registered, {COHORT} in a round, {one['file_mib']:,.0f} MiB on the disk: "
            f"{one['peak_mib']:.0f} MiB ({one['peak_anonymous_mib']:.0f} anonymous), {one['round_ms']:.1f} ms a round; "
            f"{one['load_s']:.1f} s to check the data, {one['prepare_s']:.1f} s to the end of the first round"
        )
    print(f"memory: {ratio:.2f} times (bar {BAR}); time of a round: {time_ratio:.2f} times")
    return {"runs": found, "memory_ratio": round(ratio, 3), "bar": BAR, "round_time_ratio": round(time_ratio, 3)}


def steps() -> dict[str, Any]:
    """Private steps against plain ones, and within a budget."""
    plain, _ = measured(SCATTER, False)
    private, _ = measured(SCATTER, True)
    print(f"{SCATTER}: {private:.0f} MiB private, {plain:.0f} MiB plain, {private / plain:.2f} times (bar 2)")
    within, chunk = measured(CNN, True, BUDGET)
    whole, _ = measured(CNN, True)
    print(
        f"{CNN}: {within:.0f} MiB in chunks of {chunk} for a budget of {BUDGET >> 20} MiB; {whole:.0f} MiB all at once"
    )
    return {
        "scatter": {"private_mib": round(private, 1), "plain_mib": round(plain, 1), "ratio": round(private / plain, 3)},
        "cnn": {"within_budget_mib": round(within, 1), "chunk": chunk, "whole_mib": round(whole, 1)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=["steps", "registered"], default=["steps", "registered"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="for 2.6 GB, for a while")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"torch": torch.__version__, "cores": os.cpu_count()}
    if options.json is not None and options.json.exists():
        found = {**json.loads(options.json.read_text()), **found}
    if "steps" in options.only:
        found["steps"] = steps()
    if "registered" in options.only:
        found["registered"] = registered(options.folder)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
