"""results/best.md: what the recipes of experiments/best/ come to, beside what papers report."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.privacy.certificate_text import round_up
from result_text import over_seeds, table, words

Record = dict[str, Any]

_BEST = """
Mean and standard deviation over seeds, of the model after the last round, on the official test images (EMNIST: on a
part of the official test images, of which clients hold the others). Every mechanism is priced: training, the private
mean of the features, and their second moments. The recipes were chosen on held-out training images (on those of
held-out writers for MNIST by its writers); that choice itself was not charged. No setting was compared with another
on test images, but where a goal was missed there, or just reached, a recipe was searched for again and tested again:
"tested before" has what the earlier ones came to, and such a row is a little flattered. What is left of the searches
is [recipe-search.json](recipe-search.json), of `benchmarks/recipe_search.py`, one ranking for each of five settings;
`deskew` was tried after it, beside the recipes as they were, and so was `scatter_low_orders` for Fashion-MNIST at
2.7. Computed on {machines}; the epsilon is the certified one, of the costlier seed. A delta of 1e-3 is the one of the
paper, for each agent; beside the samples of all agents, whose secure sum is released, it promises little, as those
certificates say. A file's `tuned`, words for the certificate that name what was chosen, is mostly younger than its
runs.
"""
_DRIVES = """
What drives it: few parameters on fixed features (a scattering transform, which knows no data), of which the few of
orders 0 and 1 may weigh more than the many of order 2 (`scatter_low_orders`), at fewer places (`scatter_pool`);
digits that are sheared upright, each by itself (`deskew`, which most of these recipes were chosen before); one
private step over all samples a round; a private mean of the features (`center`), which is taken away before they are
scaled to length 1; private second moments (`decorrelate`), by which the few directions in which all samples vary
shrink; clipping far below the usual norm; averaging of iterates. Where whole clients are protected, every update has
the same norm (`clipping = normalize`), and a mean that is smoothed to a low rank (`center_rank`) loses most of its
noise. With `trust = sum` the noise of all clients together is that of one.
"""
_COSTS = """
What it costs: {shortest} to {longest} s for a run on a GPU. Settings, seeds, noise multipliers and machine:
[best.json](best.json).
"""


def page(reported: Path, best: Mapping[str, Record]) -> str:
    """Recipes beside what papers report."""
    beside = tomllib.loads(reported.read_text())
    rows = []
    for setting in beside.values():
        for epsilon, one in setting.items():
            if epsilon in ("says", "paper"):
                continue
            for name in one["recipes"]:
                if name in best:
                    paper = f"{one['accuracy']:.2f}" if "accuracy" in one else ""
                    rows.append([setting["says"], *_row(name, best[name]), paper, setting.get("paper", "")])
    head = ["setting", "epsilon", "delta", "who is trusted", "accuracy, %", "seeds", "tested before, %", "recipe"]
    head += ["paper, %", "whose"]
    costs = [math.ceil(one["seconds"] / len(one["seeds"])) for one in best.values() if one["machine"]["gpu"]]
    machines = sorted({str(one["machine"]["gpu"] or one["machine"]["processor"]) for one in best.values()})
    text = [
        "# The accuracy that is reachable at a true epsilon",
        "",
        words(_BEST.format(machines=", ".join(machines))),
        "",
        *table(head, rows),
        "",
        words(_DRIVES),
        "",
        words(_COSTS.format(shortest=min(costs), longest=max(costs))),
    ]
    return "\n".join(text) + "\n"


def _row(name: str, found: Record) -> list[str]:
    settings = found["settings"]
    who = "server" if settings["method"] == "dp_fedavg" else "nobody"
    trusted = "secure sum" if settings.get("trust") == "sum" else who
    seeds = ", ".join(map(str, found["seeds"]))
    link = f"[{name}](../experiments/best/{name}.toml)"
    before = ", ".join(f"{score:.2f}" for score in found.get("tested_before", []))
    return [
        round_up(found["epsilon"]),
        f"{found['delta']:g}",
        trusted,
        over_seeds([100 * score for score in found["scores"]]),
        seeds,
        before,
        link,
    ]
