"""What surrounds a round: accounting, evaluation, the log and checkpoints, as shares of a whole run's time.

    python benchmarks/overhead.py [--device cuda]

The standard settings: the digits of the demo (300 clients), MNIST-sized images with a small CNN, and pfl's CIFAR-10
round. Each is a real run in a folder; the time of its parts is taken by a clock around them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import cloister as cl
from cloister.client.population import Population
from cloister.client.preprocessing import images
from cloister.privacy.ledger import Ledger
from cloister.runs import prepare, training
from cloister.runs.folder import RunFolder

SPENT: dict[str, float] = defaultdict(float)


def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with its time added up."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[name] += time.perf_counter() - started

    return timed


def watch() -> None:
    """Put clocks around what surrounds a round."""
    for name in ("charge", "sync", "epsilon"):
        setattr(Ledger, name, clocked("accounting", getattr(Ledger, name)))
    for owner, name, part in ((RunFolder, "append_metrics", "log"), (training.Training, "_checkpoint", "checkpoints")):
        setattr(owner, name, clocked(part, getattr(owner, name)))
    scorer = vars(prepare)["scorer"]
    vars(prepare)["scorer"] = lambda *args: clocked("evaluation", scorer(*args))


def pictures(shape: tuple[int, ...], clients: int, samples: int, tests: int) -> cl.data.Task:
    """Made-up images."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (clients * samples + tests, *shape), dtype=torch.uint8, generator=random)
    labels = torch.randint(0, 10, (len(inputs),), generator=random)
    sizes = torch.full((clients,), samples)
    people = Population(inputs[:-tests], labels[:-tests], sizes.cumsum(0) - sizes, sizes)
    preprocessing = images((0.5,) * shape[0], (0.25,) * shape[0])
    return cl.data.Task(
        "made up",
        people,
        inputs[-tests:],
        labels[-tests:],
        10,
        lambda: cl.models.cnn(shape, 10),
        preprocessing=preprocessing,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    watch()
    cifar = pictures((3, 32, 32), 1000, 50, 10_000)
    works: dict[str, tuple[Any, ...]] = {
        "digits, 300 clients": (cl.data.digits(), cl.poisson(0.5), 60, 5, 10, None),
        "28 x 28, small CNN": (pictures((1, 28, 28), 500, 60, 10_000), cl.poisson(0.1), 100, 5, 10, None),
        "pfl's CIFAR-10 round": (
            cifar,
            cl.poisson(0.05),
            50,
            5,
            10,
            lambda: cl.models.pfl_benchmark_cnn((3, 32, 32), 10),
        ),
    }
    print(
        f"{'':<22}{'ms a round':>11}{'evaluation':>11}{'accounting':>11}{'log':>7}{'checkpoints':>12}{'together':>10}"
    )
    for name, (task, cohort, rounds, steps, batch, model) in works.items():
        method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=steps, batch_size=batch)
        SPENT.clear()
        with tempfile.TemporaryDirectory() as folder:
            settings = {"cohort": cohort, "epsilon": 8.0, "delta": 1e-4, "model": model, "device": device}
            done = cl.run(method, task, rounds=rounds, folder=Path(folder) / "run", progress=False, **settings)
        shares = {part: SPENT[part] / done.seconds for part in ("evaluation", "accounting", "log", "checkpoints")}
        cells = "".join(
            f"{100 * share:>{width}.1f} %" for share, width in zip(shares.values(), (9, 9, 5, 10), strict=True)
        )
        print(
            f"{name:<22}{1000 * done.seconds / rounds:>11.2f}{cells}{100 * sum(shares.values()):>8.1f} %  {done.engine}"
        )


if __name__ == "__main__":
    main()
