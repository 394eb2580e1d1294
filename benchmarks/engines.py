"""How fast the engines are, beside a plain PyTorch loop, on identical work in one run.

    python benchmarks/engines.py [--rounds 20] [--json FILE]

One round: 50 clients x 5 steps x batch 10, clipped and summed. "plain" is what one would write by hand: a
module, torch's SGD, one client after the other. Times are medians over the rounds after a warm-up; the
engines take turns, so that whatever else the machine does hits all of them. "differ" is the relative difference of
the sums, median and largest: rounding can tip a maximum or a ReLU that is nearly tied to its other side, and then
even two plain loops over differently shaped batches differ by 1e-4 in float32 (and by 1e-15 in float64).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import cloister as cl
from cloister import engine as engines
from cloister.batches import plan
from cloister.models import cnn, mlp
from cloister.problem import problem_of
from cloister.round import Federation, cohort_total
from cloister.streams import Streams, fold

CLIENTS, STEPS, BATCH, CLIP, LR = 50, 5, 10, 1.0, 0.1


def work(make: Callable[..., nn.Module]) -> tuple[Federation, torch.Tensor, nn.Module]:
    """50 clients of 50 digits each (drawn with repetition: speed does not care) and a model."""
    random = torch.Generator().manual_seed(0)
    digits = cl.data.digits(clients=1)
    rows = torch.randint(len(digits.population.labels), (CLIENTS * 50,), generator=random)
    task = cl.data.from_arrays(
        digits.population.inputs[rows],
        digits.population.labels[rows],
        torch.arange(CLIENTS).repeat_interleave(50),
        test=(digits.test_inputs, digits.test_labels),
    )
    torch.manual_seed(0)
    module = make(task.shape, 10)
    population = task.population
    problem = problem_of(module, task.loss, population.inputs[:2], population.labels[:2], 10)
    method = cl.methods.dp_fedavg(clip=CLIP, lr=LR, steps=STEPS, batch=BATCH, noise_multiplier=1.0)
    fed = Federation(method, cl.everyone(), problem, population, Streams(0))
    return fed, problem.layout.flatten(dict(module.named_parameters())), module


def plain_loop(fed: Federation, module: nn.Module, w: torch.Tensor, number: int) -> torch.Tensor:
    """The same round by hand."""
    clients = torch.arange(CLIENTS)
    keys = fold(torch.tensor(fed.streams.key("batches", number)), clients)
    batches = plan(fed.population, fed.method.local.batching, clients, keys).samples
    net, total = copy.deepcopy(module), torch.zeros_like(w)
    for client in range(CLIENTS):
        net.load_state_dict(fed.problem.layout.views(w))
        optimiser = torch.optim.SGD(net.parameters(), lr=LR)
        for rows in batches[client]:
            optimiser.zero_grad()
            loss = F.cross_entropy(net(fed.population.inputs[rows]), fed.population.labels[rows])
            torch.autograd.backward(loss)
            optimiser.step()
        update = nn.utils.parameters_to_vector(net.parameters()).detach() - w
        total += update * min(1.0, CLIP / float(update.norm()))
    return total


def measure(name: str, make: Callable[..., nn.Module], rounds: int) -> dict[str, Any]:
    """Medians of every way of doing the round, their agreement, and what `auto` chose."""
    fed, w, module = work(make)
    vectorised = engines.Vectorised(engines.chunk_size(fed, w, engines.MEMORY_BUDGET))
    started = time.perf_counter()
    chosen = engines.choose(fed, w, vectorised)
    choosing = time.perf_counter() - started
    everyone = torch.arange(CLIENTS)
    ways: dict[str, Callable[[int], torch.Tensor]] = {
        "plain": lambda number: plain_loop(fed, module, w, number),
        "loop": lambda number: cohort_total(fed, engines.Loop(), number, w, everyone)[0],
        "vectorised": lambda number: cohort_total(fed, vectorised, number, w, everyone)[0],
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    differences: list[float] = []
    for number in range(1, rounds + 4):
        sums = {}
        for way, play in ways.items():
            started = time.perf_counter()
            sums[way] = play(number)
            times[way].append(time.perf_counter() - started)
        apart = [float((total - sums["plain"]).norm() / sums["plain"].norm()) for total in sums.values()]
        differences.append(max(apart))
    medians = {way: 1000 * statistics.median(seconds[3:]) for way, seconds in times.items()}
    best = min(("loop", "vectorised"), key=lambda way: medians[way])
    return {
        "model": name,
        "parameters": w.numel(),
        "milliseconds": medians,
        "loop / vectorised": medians["loop"] / medians["vectorised"],
        "plain / vectorised": medians["plain"] / medians["vectorised"],
        "auto": chosen.name,
        "auto / best": medians[chosen.name] / medians[best],
        "seconds to choose": choosing,
        "median relative difference": statistics.median(differences),
        "largest relative difference": max(differences),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    models: dict[str, Callable[..., nn.Module]] = {
        "mlp 64-32-10": mlp,
        "cnn 8-16 on 8x8": cnn,
        "cnn 32-64 on 8x8": lambda shape, classes: cnn(shape, classes, width=32),
    }
    results = [measure(name, make, arguments.rounds) for name, make in models.items()]
    work_done = f"{CLIENTS} clients x {STEPS} steps x batch {BATCH}"
    print(f"{work_done}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    heads = f"{'model':<18}{'plain':>9}{'loop':>9}{'vector.':>9}{'loop/v':>8}{'plain/v':>8}"
    print(f"{heads}  {'auto':<11}{'auto/best':>9}  differ (median, largest)")
    for r in results:
        ms = r["milliseconds"]
        print(
            f"{r['model']:<18}{ms['plain']:>7.1f}ms{ms['loop']:>7.1f}ms{ms['vectorised']:>7.1f}ms"
            f"{r['loop / vectorised']:>8.1f}{r['plain / vectorised']:>8.1f}  {r['auto']:<11}{r['auto / best']:>9.2f}"
            f"  {r['median relative difference']:.0e} {r['largest relative difference']:.0e}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
