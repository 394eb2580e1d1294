"""Private steps beside Opacus, client by client: the same batches, models and noise, in one run on one machine.

    python benchmarks/samples.py [--device cuda] [--rounds 10] [--work NAME ...] [--json FILE]

Both sides process the same Poisson batches. Ours draws them, and the noise, inside the clock; Opacus (GradSampleModule
and DPOptimizer, a fresh one for each client and round, as PFL's own code has it) is given them. The clients' models
start from the same parameters and are averaged in the end.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cloister as cl
from cloister.client.poisson_batches import draw_batches
from cloister.engine import Graphed, Loop, Vectorized
from cloister.round import Engine
from cloister.round.bind import Federation
from measure import Bench, Suite, in_turns
from works import Work

CLIP, NOISE = 1.0, 1.0

WORKS = {
    "mnist": Work(
        "papernot_mnist_cnn", (1, 28, 28), 10, 10, steps=5, batch_size=64, registered=10, samples=6000, lr=0.05
    ),
    "mnist100": Work(
        "papernot_mnist_cnn", (1, 28, 28), 10, 100, 5, batch_size=64, registered=100, samples=600, lr=0.05
    ),
    "cifar": Work("papernot_cifar_cnn", (3, 32, 32), 10, 4, 3, batch_size=64, registered=4, samples=5000, lr=0.05),
    "digits": Work("mlp", (64,), 10, cohort=50, steps=5, batch_size=10, registered=50, samples=40, lr=0.05),
    "scatter": Work(
        "scatter_linear", (81, 7, 7), 10, 10, 10, batch_size=64, registered=10, samples=640, lr=0.05, pixels=False
    ),
}
WORKS["linear"] = replace(WORKS["scatter"], model="logistic", shape=(3969,))  # on features that were normalized before
BARS = {"cpu": {"mnist": 1.3, "cifar": 1.3, "digits": 15.0, "scatter": 6.0, "linear": 6.0}, "cuda": {"mnist100": 60.0}}


def federation(work: Work, device: str, precision: str) -> Bench:
    """The work as a federation of clients that train privately and all take part."""
    bench = Bench(work, device, precision)
    method = cl.methods.pfl(
        clip_norm=CLIP,
        lr=work.lr,
        momentum=0.0,
        batch_size=work.batch_size,
        local_epochs=work.steps,
        local_epoch="batch",
        noise_multiplier=NOISE,
    )
    object.__setattr__(bench, "fed", replace(bench.fed, method=method, cohort=cl.full()))
    return bench


def batches_of(work: Work, fed: Federation, round: int) -> list[list[Tensor]]:
    """For every client, the rows of each of its batches."""
    clients, sizes = range(work.cohort), fed.population.counts.tolist()
    drawn = draw_batches(fed.streams, round, 0, fed.method.local.batching, clients, sizes, work.cohort)
    starts, device = fed.population.starts.cpu(), fed.population.starts.device
    return [
        [(rows[real] + start).to(device) for rows, real in zip(samples, mask, strict=True)]
        for samples, mask, start in zip(drawn.samples, drawn.mask, starts, strict=True)
    ]


def opacus_round(work: Work, fed: Federation, module: nn.Module, w: Tensor, batches: list[list[Tensor]]) -> Tensor:
    """The mean of the clients' models, by Opacus."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    layout, total = fed.objective.layout, torch.zeros_like(w)
    expected = fed.method.local.batching.expected(work.samples)
    for own in batches:
        private = GradSampleModule(layout.load(copy.deepcopy(module), w))
        inner = torch.optim.SGD(private.parameters(), lr=work.lr)
        optimizer = DPOptimizer(inner, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=expected)
        for rows in own:
            inputs = fed.population.inputs[rows]
            inputs = (inputs / 255 - 0.5) / 0.25 if inputs.dtype == torch.uint8 else inputs
            optimizer.zero_grad()
            F.cross_entropy(private(inputs), fed.population.labels[rows]).backward()
            optimizer.step()
        total += torch.cat([p.detach().flatten() for p in private.parameters()])
    return total / len(batches)


def engines_for(device: str, work: Work) -> dict[str, Engine]:
    if device == "cuda":
        return {"graphed": Graphed(work.cohort), "compiled": Graphed(work.cohort, compiled=True)}
    half = Vectorized(-(-work.cohort // 2))  # which the cache may hold
    return {"vectorized": Vectorized(work.cohort), "in halves": half, "loop": Loop(workers=torch.get_num_threads())}


def measure(suite: Suite, name: str, rounds: int, precision: str) -> None:
    work = WORKS[name]
    bench = federation(work, suite.device, precision)
    ahead = [batches_of(work, bench.fed, number) for number in range(rounds + 50)]
    plays: dict[str, Any] = {}
    for label, engine in engines_for(suite.device, work).items():
        plays[label] = bench.round(engine)
    plays["opacus"] = lambda number: opacus_round(work, bench.fed, bench.module, bench.w, ahead[number])
    times = in_turns(plays, rounds, warmup=16 if suite.device == "cpu" and name != "mnist" else 4)
    theirs = times.pop("opacus")
    best = min(times, key=lambda label: times[label].median)
    every = {label: found.median for label, found in times.items()}
    bar = BARS[suite.device].get(name, 1.0)
    about = {"engine": best, "engines": every, "precision": precision}
    suite.row(f"{work}, private steps", times[best], "Opacus", theirs, bar, **about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--work", nargs="*", choices=list(WORKS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # what Opacus and torch say about hooks
    suite = Suite(options.device, options.rounds, options.json)
    for name in options.work or BARS[options.device]:
        for precision in ("exact",) if options.device == "cpu" else ("exact", "tf32"):
            measure(suite, name, options.rounds, precision)
    print(suite.table())


if __name__ == "__main__":
    main()
