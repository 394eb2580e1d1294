"""Settings for recipes of `experiments/best/`, compared on training images that are held out: how recipes are chosen.

    python benchmarks/recipe_search.py [--settings mnist-shards-2.0,...] [--seconds 60] [--device cuda] [--out FILE]
    python benchmarks/recipe_search.py --only deskew=true ... the recipes beside themselves with these keys, no search
    python benchmarks/recipe_search.py --check [--small]      the surrogate beside runs of the library

No test image is looked at. A search begins with the recipe as it is and changes some of its keys, along with what makes
up for them (twice the clip goes with half the rate), in turns: many candidates with one draw of the noise and one
split, then the best of them with other draws, and the best of these with draws and a split that nothing was chosen by,
beside the recipe as it is. Candidates are simulated, hundreds a second on a GPU (`recipe_surrogate.py`), at the noise
that the library would add for the recipe's epsilon. Products are in tf32: they err by a thousandth of what they are,
far less than noise does. What wins is to be run by the library, with the keys that are printed.

FILE gets a line of JSON for every candidate and draw, at once, and one for every ranking.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

import torch

from cloister.runs.config_file import load
from cloister.runs.signatures import introspected
from recipe_inputs import PREPARING, Source, Split, Values, inputs_of, plan_ahead
from recipe_surrogate import checked, scores

RECIPES = Path(__file__).resolve().parents[1] / "experiments" / "best"
SETTINGS = ("mnist-shards-2.0", "mnist-agents-1.0", "mnist-writers-2.0", "emnist-users-2.0", "cifar10-agents-sum-1.0")
COLUMNS = 640
"""Of one product of matrices: classes times candidates."""
ELITE = 12
EXPLORING, CONFIRMING = 0.6, 0.8  # parts of the time after which a stage ends
SMALL = 0.05
Draw = tuple[int, int]
"""(split, seed of the noise)"""
FIRST: Draw = (0, 0)
SECOND: tuple[Draw, ...] = ((0, 1), (0, 2))
LAST: tuple[Draw, ...] = ((0, 3), (1, 4), (0, 5), (1, 6), (1, 7), (0, 8))
LEAST_DRAWS = 3

Change = dict[str, Any]
"""New values of some keys; None takes a key away."""


def _each(key: str, *values: Any) -> list[Change]:
    return [{key: value} for value in values]


def _schedules(prefix: str) -> list[Change]:
    name, final = f"{prefix}lr_schedule", f"{prefix}lr_final"
    shapes = [("linear", 0.1), ("linear", 0.0), ("cosine", 0.0), ("cosine", 0.1), ("exponential", 0.1)]
    return [{name: None, final: None}, *({name: shape, final: last} for shape, last in shapes)]


def prepared_by(values: Values) -> dict[str, list[Change]]:
    """What may change of the inputs and of the cohort."""
    color = values["data"] == "cifar10"
    found = {
        "compression": _each("scatter_compression", None, "sqrt", "log"),
        "low orders": _each("scatter_low_orders", None, 1.5, 2.0, 3.0, 4.0, 6.0),
        "groups": _each("scatter_groups", 3, 9, 27, 81),
        "pool": _each("scatter_pool", *((3, 4, 5) if color else (None, 4, 5, 6))),
        "center": _each("center", 0.02, 0.03, 0.05, 0.08, 0.12, 0.2),
        "rank": _each("center_rank", 1, 2, 3, 4, 6, 8, None),
        "decorrelate": _each("decorrelate", None, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3),
        "bias": _each("bias", 0.0, 0.05, 0.1, 0.2),
    }
    if values["data"] in ("mnist", "qmnist", "emnist"):
        found["deskew"] = _each("deskew", None, True)
    if values["cohort"] == "cyclic":
        full: Change = {"cohort": "full", "clients_per_round": None}
        turns = [{"cohort": "cyclic", "clients_per_round": some} for some in (10, 20, 50)]
        found["cohort"] = [full, *turns, full]
    return found


def trained_by(values: Values) -> dict[str, list[Change]]:
    """What may change of the training; numbers by factors are in `_scaled`."""
    found = {
        "average": _each("average", None, 0.8, 0.9, 0.95, 0.97),
        "server momentum": _each("server_momentum", None, 0.3, 0.5, 0.8),
        "rounds": _each("rounds", 20, 40, 60, 80, 120, 160, 240),
        "rate": _each("rate", 0.5, 0.7, 0.85, 1.2, 1.4, 2.0),
    }
    if values["method"] == "dp_fedavg":
        more = {
            "local rate": _each("local rate", 0.3, 0.6, 1.5, 3.0),
            "local steps": _each("local_steps", 1, 2, 4, 6, 8, 12, 16, 24),
            "schedule": _schedules("server_"),
        }
    else:
        more = {"clip": _each("clip", 0.3, 0.5, 0.7, 1.5, 2.0, 3.0), "schedule": _schedules("")}
    return {**found, **more}


def changed(values: Values, change: Change) -> Values:
    """The keys after a change, and what goes with it: the way that a model can go stays as long."""
    rate = "server_lr" if values["method"] == "dp_fedavg" else "lr"
    found, factor = dict(values), 1.0
    for key, value in change.items():
        if key in ("rate", "clip"):
            factor *= value if key == "rate" else 1 / value
            if key == "clip":
                found["clip_norm"] *= value
        elif key == "local rate":
            found["lr"] *= value
        elif value is None:
            found.pop(key, None)
        else:
            found[key] = value
    factor *= values["rounds"] / found["rounds"]
    factor *= (1 - found.get("server_momentum", 0.0)) / (1 - values.get("server_momentum", 0.0))
    found[rate] *= factor
    found |= {key: float(f"{found[key]:.4g}") for key in (rate, "lr", "clip_norm")}
    return found


@dataclass
class Search:
    """Candidates of one recipe and what they came to."""

    name: str
    source: Source
    seconds: float
    pool: Executor
    out: IO[str]
    columns: int
    found: dict[str, dict[Draw, float]] = field(default_factory=lambda: defaultdict(dict))
    """By candidate, as JSON."""
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.splits: dict[int, Split] = {}
        self.random = random.Random(0)
        self.current = self.source.values
        self.most = max(4, self.columns // self.source.raw.classes)

    @property
    def spent(self) -> float:
        """The part of the time that is over."""
        return (time.perf_counter() - self.started) / self.seconds

    def play(self, candidates: Iterable[Values], draw: Draw, stage: str, until: float = math.inf) -> None:
        """Score what has not been scored, those with the same inputs together, and some at least, whatever the time."""
        groups: dict[str, list[Values]] = defaultdict(list)
        new = {_name(one): one for one in candidates if draw not in self.found[_name(one)]}
        plan_ahead(new.values(), self.source.units, self.pool)
        for one in new.values():
            groups[_prepared(one)].append(one)
        if draw[0] not in self.splits:
            self.splits[draw[0]] = self.source.split(draw[0])
        for group in groups.values():
            inputs = inputs_of(self.splits[draw[0]], group[0], draw[1])
            for first in range(0, len(group), self.most):
                if first and self.spent > until:
                    return
                some = group[first : first + self.most]
                for one, score in zip(some, scores(inputs, some, draw[1]), strict=True):
                    self.found[_name(one)][draw] = score
                    about = {"setting": self.name, "stage": stage, "split": draw[0], "seed": draw[1]}
                    self.write({**about, "score": score, "keys": self.difference(one)})

    def write(self, line: Values) -> None:
        """Now: a run that is cut short has told what it found."""
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def difference(self, candidate: Values) -> Change:
        """What differs from the recipe; None of a key that it does without."""
        before = self.current
        return {k: candidate.get(k) for k in {**before, **candidate} if candidate.get(k) != before.get(k)}

    def best(self, draws: Sequence[Draw], count: int) -> list[Values]:
        """By the mean over some draws, of those that were scored with all of them."""
        means = {
            name: statistics.fmean(got[d] for d in draws) for name, got in self.found.items() if {*draws} <= {*got}
        }
        return [json.loads(name) for name in sorted(means, key=lambda name: -means[name])[:count]]

    def mutated(self, values: Values, menu: dict[str, list[Change]], times: int) -> Values:
        """Some random changes."""
        for _ in range(times):
            values = changed(values, self.random.choice(menu[self.random.choice(list(menu))]))
        return values

    def explore(self) -> None:
        """One draw: the recipe's own inputs first, with every single change of training; then changes of both."""
        inputs, training = prepared_by(self.current), trained_by(self.current)
        single = [changed(self.current, change) for changes in training.values() for change in changes]
        self.play([self.current, *single], FIRST, "explore", EXPLORING)
        untried = [changed(self.current, change) for changes in inputs.values() for change in changes]
        untried = list({_prepared(one): one for one in untried if _prepared(one) != _prepared(self.current)}.values())
        self.random.shuffle(untried)
        while self.spent < EXPLORING:
            elite = self.best([FIRST], ELITE)
            if untried and self.random.random() < 0.7:
                base = untried.pop()
            else:
                base = self.mutated(self.random.choice(elite), inputs, self.random.choice((0, 1, 1, 2, 2, 3)))
            same = {key: base.get(key) for key in PREPARING}
            group = [changed(one, same) for one in (*elite[: self.most // 3], self.current)]
            while len(group) < self.most:
                group.append(self.mutated(self.random.choice(group), training, self.random.choice((1, 1, 2, 3))))
            self.play(group, FIRST, "explore", EXPLORING)

    def confirm(self) -> list[Values]:
        """Fewer candidates with more draws; those that are left, with draws that nothing was chosen by."""
        known = [FIRST]
        for draw, count in zip(SECOND, (4 * ELITE, 2 * ELITE), strict=True):
            if self.spent < CONFIRMING:
                self.play(self.best(known, count), draw, "confirm")
                known.append(draw)
        left = self.best(known, ELITE)
        for number, draw in enumerate(LAST):
            if number < LEAST_DRAWS or self.spent < 1:
                self.play([self.current, *left], draw, "last")
        return left

    def ranked(self, left: list[Values]) -> list[Values]:
        """By the mean over the last draws: score, how much above the recipe with the same draws, and its error."""
        draws = [draw for draw in LAST if draw in self.found[_name(self.current)]]
        recipe, rows = self.found[_name(self.current)], []
        for name, one in {_name(one): one for one in (self.current, *left)}.items():
            gains = [self.found[name][draw] - recipe[draw] for draw in draws]
            error = statistics.stdev(gains) / math.sqrt(len(draws))
            score = statistics.fmean(self.found[name][draw] for draw in draws)
            rows.append({"score": score, "gain": statistics.fmean(gains), "error": error, "keys": self.difference(one)})
        return sorted(rows, key=lambda row: -row["score"])

    def tell(self, rows: list[Values], candidates: int) -> None:
        """A ranking."""
        self.write({"setting": self.name, "ranking": rows})
        print(f"\n{self.name}: {candidates} candidates in {time.perf_counter() - self.started:.0f} s\n")
        print("| held out, % | above the recipe | keys |\n| --- | --- | --- |")
        for row in rows:
            keys = " ".join(f"{key}={json.dumps(value)}" for key, value in row["keys"].items()) or "the recipe as it is"
            gain = f"{100 * row['gain']:+.2f} ± {100 * row['error']:.2f}"
            print(f"| {100 * row['score']:.2f} | {gain} | {keys} |", flush=True)


def _name(candidate: Values) -> str:
    return json.dumps(candidate, sort_keys=True)


def _prepared(candidate: Values) -> str:
    return json.dumps({key: candidate.get(key) for key in PREPARING})


def search(this: Search) -> None:
    """One recipe, and its ranking."""
    this.explore()
    explored = len(this.found)
    this.tell(this.ranked(this.confirm()), explored)


def beside(this: Search, keys: Change) -> None:
    """One recipe, and its ranking beside itself with some keys."""
    other = changed(this.current, keys)
    for number, draw in enumerate(LAST):
        if number < LEAST_DRAWS or this.spent < 1:
            this.play([this.current, other], draw, "last")
    this.tell(this.ranked([other]), 1)


def check(name: str, source: Source, seeds: Sequence[int]) -> None:
    """The recipe as it is, by the library and simulated."""
    library, simulated = checked(source.split(0), source.values, seeds)
    gap = 100 * (statistics.fmean(simulated) - statistics.fmean(library))
    told = [", ".join(f"{100 * one:.2f}" for one in found) for found in (library, simulated)]
    print(f"{name}: library {told[0]}; simulated {told[1]}; difference {gap:+.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seconds", type=float, default=30, help="of searching, for every setting")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true", help="a part of the images, for a machine without a GPU")
    parser.add_argument(
        "--check", action="store_true", help="compare the surrogate with the library, and do not search"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="KEY=VALUE", help="compare these keys, and no others")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool, open(options.out or os.devnull, "w") as out:
        for _ in range(os.cpu_count() or 1):
            pool.submit(introspected)  # processes start, and import what they need, beside the first features
        for name in options.settings.split(","):
            started = time.perf_counter()
            values: Values = {key: value for key, value in load(RECIPES / f"{name}.toml").items() if key != "tuned"}
            if options.small and options.check:  # as much noise beside fewer samples would leave nothing to compare
                values["epsilon"] = float(values["epsilon"]) / SMALL
            source = Source.of(values, SMALL if options.small else 1.0, options.device)
            source.features(values)
            print(f"{name}: features after {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
            if options.check:
                check(name, source, range(3))
            else:
                columns = COLUMNS // 8 if options.small else COLUMNS
                this = Search(name, source, options.seconds, pool, out, columns)
                beside(this, load(None, options.only)) if options.only else search(this)


if __name__ == "__main__":
    main()
