"""Comparisons of our own, of `cloister compare` over several seeds: a page of results/ each, and evidence for claims.

The papers' tables take a GPU for hours, and most of their rows have one seed, which tells nothing. A smaller network
over five seeds tells more about methods, of that setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.files import read_json
from cloister.runs.report.comparison import series_name
from cloister.studies.results import read_results
from cloister.studies.statistics import Difference, paired, summary
from result_text import over_seeds, table, words

Record = dict[str, Any]

_ROW = ("label", "swept", "target", "metric", "seeds", "scores", "epsilon", "delta", "adjacency", "upload_bytes")
_ABOUT = ("command", "software", "machine", "written", "seconds", "ranking")
_TOLD = (
    *("data", "public_samples", "model", "cohort", "sampling_rate", "rounds", "local_epochs", "batch_size", "lr"),
    "clip_norm",
)
_LEFT_OUT = ("device", "engine", "memory", "precision", "config", "seed", "tuned", "epsilon")
"""Keys that are no settings of a row: how it is computed, and what it has in columns of its own."""

TEXT = """
Run by `{command}`, on {machine}: {seeds} seeds for each row, {minutes} minutes of computing in all. Accuracy in
percent, mean and standard deviation over seeds, of the model after the last round on the test samples. Beside it the
difference to {baseline}, seed by seed, with a 95 % interval by itself, and what the ranking says of it beside the
best of its epsilon, where all pairs are judged together (Holm): {words}. All rows of an epsilon promise the same:
{adjacency}, at delta {delta:g}.
"""
_WORDS = {
    "best": "the highest mean",
    "not distinguishable": "the seeds cannot tell it from the best",
    "worse": "they can",
    "cannot tell": "too few common seeds",
}


def taken(folder: Path) -> Record:
    """What is kept of a folder of `cloister compare`."""
    found = read_results(folder)
    settings = {_place(cell): cell["values"] for cell in found["cells"]}
    rows = []
    for row in found["rows"]:
        kept = {key: value for key, value in settings[_place(row)].items() if key not in _LEFT_OUT}
        rows.append({**{key: row[key] for key in _ROW}, "settings": kept})
    return {**{key: found[key] for key in _ABOUT}, "rows": rows}


def _place(one: Record) -> str:
    """Which row a row or a cell is of."""
    swept = {key: value for key, value in one["swept"].items() if key != "seed"}
    return json.dumps([one["label"], swept], sort_keys=True)


def _name(row: Record) -> str:
    """What a row is called: its label, and what is swept beside epsilon and the seed."""
    return series_name(row["label"], row["swept"])


def read(folder: Path) -> dict[str, Record]:
    """Every comparison that is kept, by its name."""
    return {path.stem: read_json(path) for path in sorted(folder.glob("*.json"))}


def as_table(found: Record) -> Record:
    """The same in the layout of a paper's table, which claims are judged by."""
    cells = [
        {
            "cell": f"{_name(row)}, epsilon {row['target']:g}",
            "method": _name(row),
            "axes": {"epsilon": f"{row['target']:g}"},
            "runs": {
                str(seed): {"scores": {"final": None if score is None else 100 * score}}
                for seed, score in zip(row["seeds"], row["scores"], strict=True)
            },
            "metric": "final",
            "quantity": "accuracy",
            "true_epsilon": row["epsilon"],
            "changed": {},
        }
        for row in found["rows"]
    ]
    return {"cells": cells}


def page(name: str, title: str, baseline: str, found: Record) -> str:
    """Rows by epsilon, each beside the baseline and in the ranking."""
    rows = found["rows"]
    verdicts = {one["name"]: one["verdict"] for group in found["ranking"] for one in group["order"]}
    told = TEXT.format(
        command=found["command"],
        machine=found["machine"]["gpu"] or f"{found['machine']['processor']}, a core for each run",
        seeds=min(len(row["seeds"]) for row in rows),
        minutes=round(found["seconds"] / 60),
        baseline=f"`{baseline}`",
        words="; ".join(f'"{word}": {_WORDS[word]}' for word in dict.fromkeys(verdicts.values())),
        adjacency=rows[0]["adjacency"].split(":")[0],
        delta=max(row["delta"] for row in rows),
    )
    text = [f"# {title}", "", words(told), "", f"![accuracy of every row, with one standard deviation]({name}.png)"]
    for target in dict.fromkeys(row["target"] for row in rows):
        own = [row for row in rows if row["target"] == target]
        text += ["", f"## At epsilon {target:g}", "", *_table(own, baseline, _verdicts(found, target))]
    text += ["", "## Settings", "", *_settings({_name(row): row["settings"] for row in rows})]
    return "\n".join(text) + "\n"


def _verdicts(found: Record, target: float) -> dict[str, str]:
    """What the ranking of an epsilon says of each row."""
    groups = [group for group in found["ranking"] if group["title"].split(",")[0] == f"at epsilon {target:g}"]
    return {one["name"]: one["verdict"] for group in groups for one in group["order"]}


def _table(rows: Sequence[Record], baseline: str, verdicts: Mapping[str, str]) -> list[str]:
    head = ["method", "accuracy, %", "seeds", f"beside {baseline}", "in the ranking", "true epsilon", "upload, kB"]
    scores = {_name(row): _scores(row) for row in rows}
    means = {name: summary(list(own.values())).mean for name, own in scores.items()}
    lines = []
    for row in sorted(rows, key=lambda row: -means[_name(row)]):
        name = _name(row)
        mean, seeds = over_seeds(list(scores[name].values())), ", ".join(map(str, row["seeds"]))
        beside = "" if name == baseline or baseline not in scores else _difference(paired(scores, name, baseline))
        upload = f"{row['upload_bytes'] / 1000:.1f}"
        lines.append([f"`{name}`", mean, seeds, beside, verdicts.get(name, ""), round_up(row["epsilon"]), upload])
    return table(head, lines)


def _scores(row: Record) -> dict[int, float]:
    """By seed, in percent."""
    both = zip(row["seeds"], row["scores"], strict=True)
    return {seed: 100 * score for seed, score in both if score is not None}


def _difference(gap: Difference) -> str:
    """Of two methods, with its interval."""
    if gap.mean is None:
        return ""
    found = f"{gap.mean:+.2f}"
    return found if gap.low is None or gap.high is None else f"{found} ({gap.low:+.2f} to {gap.high:+.2f})"


def _settings(settings: Mapping[str, Record]) -> list[str]:
    """What all rows share of what a reader must know, then what each has of its own."""
    keys = dict.fromkeys(key for own in settings.values() for key in own)
    first = next(iter(settings.values()))
    same = {key for key in keys if all(own.get(key) == first.get(key) for own in settings.values())}
    lines = ["- all: " + ", ".join(f"{key} = {first[key]}" for key in _TOLD if key in same and key in first)]
    for name, own in settings.items():
        apart = [f"{key} = {value}" for key, value in own.items() if key not in same and key != "method"]
        if apart:
            lines.append(f"- `{name}`: {', '.join(apart)}")
    return lines
