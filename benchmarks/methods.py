"""What a method costs beside DP-FedAvg: a round of each on the same local work and the same engine.

    python benchmarks/methods.py [--device cuda] [--rounds 20] [--json FILE]

BLUR's setting: 30 local steps; on a GPU the CNN of DDGauss (1,018,174 parameters) with batches of 64 and 226 samples a
client, as EMNIST's writers have, captured as graphs; on a CPU a small MLP. On a CPU methods take turns, so that a busy
machine is busy for all.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import cloister as cl
from cloister.core import Cohort, Method
from cloister.engine import Graphed, Vectorized
from cloister.round import Engine
from measure import Bench, Suite, Times, in_turns, timed
from works import WORKS, Work

BARS = {
    "blur": 1.1,
    "fed_smp_rand_k": 1.1,
    "fed_smp_top_k": 1.1,
    "adaptive_clipping": 1.1,
    "lus": 1.3,
    "lus batch": 1.3,
    "top_k A": 1.3,
    "top_k B": 1.3,
    "dp_fedsam": 2.2,
    "dp_fedsam plain": 2.2,
    "ddgauss": 1.5,
    "dp_ftrl": None,
    "dp_fedprox": None,
}


def methods(work: Work) -> dict[str, tuple[Method, Cohort]]:
    """Each with the same local steps. top_k's bar is its own cost, so it is put upon plain steps here."""
    shared: dict[str, Any] = {
        "lr": work.lr,
        "local_steps": work.steps,
        "batch_size": work.batch_size,
        "noise_multiplier": 1.0,
    }
    usual: dict[str, Any] = {"clip_norm": work.clip_norm, **shared}
    bare: dict[str, Any] = {**usual, "momentum": 0.0, "weight_decay": 0.0, "lr_decay": 1.0}
    rule = cl.client.sgd(lr=work.lr, batch_size=work.batch_size, local_steps=work.steps)
    plain = cl.methods.dp_fedavg(**usual)
    on_sum = cl.transforms.chain(plain.transform, cl.transforms.top_k_of_sum(0.4))
    cohort, participations = cl.fixed_size(work.cohort), cl.cyclic(work.cohort)
    made = cl.methods
    return {
        "dp_fedavg": (plain, cohort),
        "blur": (made.blur(**usual), cohort),
        "fed_smp_rand_k": (made.fed_smp_rand_k(**usual), cohort),
        "fed_smp_top_k": (made.fed_smp_top_k(**usual), cohort),
        "adaptive_clipping": (made.adaptive_clipping(**usual), cohort),
        "lus": (made.lus(**usual), cohort),
        "lus batch": (made.lus(**usual, importance="batch"), cohort),
        "top_k A": (replace(plain, local=cl.client.keep_largest(rule, 0.4)), cohort),
        "top_k B": (replace(plain, transform=on_sum), cohort),
        "dp_fedsam": (made.dp_fedsam(**bare), cohort),
        "dp_fedsam plain": (made.dp_fedsam(**bare, sam="plain"), cohort),
        "ddgauss": (made.ddgauss(**usual), participations),
        "dp_ftrl": (made.dp_ftrl(**usual), participations),
        "dp_fedprox": (made.dp_fedprox(**usual), cohort),
    }


def benches(work: Work, device: str, precision: str) -> dict[str, Bench]:
    """The work with each method, in cohorts of the same size."""
    first = Bench(replace(work, registered=2 * work.cohort), device, precision)
    found = {}
    for name, (method, cohort) in methods(first.work).items():
        found[name] = replace(first)
        object.__setattr__(found[name], "fed", replace(first.fed, method=method, cohort=cohort))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    gpu = options.device == "cuda"
    suite = Suite(options.device, options.rounds, options.json)
    all_of_them = benches(WORKS["writers" if gpu else "small"], options.device, "tf32" if gpu else "exact")

    def engine() -> Engine:
        return Graphed(50) if gpu else Vectorized(50)

    if gpu:
        times: dict[str, Times] = {}
        for name, bench in all_of_them.items():
            times[name] = timed(bench.round(engine()), options.rounds)
            torch.cuda.empty_cache()
    else:
        times = in_turns({n: b.round(engine()) for n, b in all_of_them.items()}, options.rounds, warmup=15)
    base = times.pop("dp_fedavg")
    for name, found in times.items():
        work = str(all_of_them[name].work)
        ratio = {"method": name, "relative": found.median / base.median, "bar": BARS[name], "work": work}
        suite.add({**ratio, "ours": asdict(found), "dp_fedavg": asdict(base)})


if __name__ == "__main__":
    main()
