"""What runs recorded, as words and tables. Whatever shows something that is not private carries the mark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cloister.runs.metric_text import figure
from cloister.runs.recorded import MARK, NOT_PRIVATE, Recorded
from cloister.runs.report.style import new_table

if TYPE_CHECKING:
    from rich.table import Table

_EXACT = {
    "updates and gradients": {
        "median norm": "norms/quantiles/0.5",
        "mean norm": "norms/mean",
        "clip factor": "clipping/mean",
        "its spread": "clipping/spread",
        "share clipped": "clipping/clipped",
        "gradient norm": "gradients/quantiles/0.5",
    },
    "cosines of updates": {
        "of pairs": "cosine/pairwise",
        "with the mean": "cosine/with_mean/mean",
        "released with exact mean": "cosine/released",
    },
    "norms in the mean update": {
        "signal": "signal/signal",
        "noise": "signal/noise",
        "expected noise": "signal/expected_noise",
        "signal / noise": "signal/ratio",
        "clipping bias": "signal/clipping_bias",
        "unclipped": "signal/unclipped",
    },
    "sparsity": {
        "zero in updates": "sparsity/updates",
        "zero or not sent": "sparsity/messages",
        "overlap": "sparsity/overlap",
        "by chance": "sparsity/by_chance",
        "kept by anybody": "sparsity/union",
    },
    "training samples": {
        "train loss": "train/loss",
        "loss gap": "train/loss_gap",
        "train accuracy": "train/accuracy",
        "accuracy gap": "train/accuracy_gap",
    },
}
_IN_A_LINE = {
    "mean cosine of pairs of updates": "cosine/pairwise",
    "cosine of the released mean with the exact one": "cosine/released",
    "signal over noise": "signal/ratio",
    "clipping bias of the mean": "signal/clipping_bias",
    "share of coordinates that are zero in messages or not sent": "sparsity/messages",
    "overlap of the others": "sparsity/overlap",
}
_PAID_FOR = {"noise multiplier": "thresholds/noise_multiplier", "clip norm": "thresholds/clip_norm"}


def measurements_tables(recorded: Recorded) -> dict[str, Table]:
    """The figures of every round, as far as there are some, by title; what is not private says so below."""
    found = {f"{title}, {MARK}": _table(recorded, names, NOT_PRIVATE) for title, names in _EXACT.items()}
    paid = recorded.was_paid_for("thresholds")
    title = "from what was paid for" if paid else f"thresholds, {MARK}"
    found[title] = _table(recorded, _PAID_FOR, None if paid else NOT_PRIVATE)
    return {title: table for title, table in found.items() if table is not None}


def _table(recorded: Recorded, names: Mapping[str, str], mark: str | None) -> Table | None:
    found = {head: recorded.by_round(name) for head, name in names.items()}
    found = {head: values for head, values in found.items() if values}
    table = new_table("round", *found)
    for line in recorded.lines if found else ():
        values = [known.get(line["round"]) for known in found.values()]
        if any(value is not None for value in values):
            table.add_row(str(line["round"]), *("-" if value is None else f"{value:.4g}" for value in values))
    table.caption = mark
    return table if found else None


def measurements_text(recorded: Recorded) -> str:
    """What was recorded, in a few lines."""
    exact: list[str] = []
    paid: list[str] = []
    gap, train = recorded.by_round("train/accuracy_gap"), recorded.by_round("train/accuracy")
    if gap:
        last = max(gap)
        score, distance = figure("accuracy", train[last]), figure("accuracy", gap[last])
        exact.append(f"train accuracy {score} in round {last}, train-test gap {distance}")
    elif loss := recorded.by_round("train/loss"):
        exact.append(f"train loss {figure('loss', loss[max(loss)])} in round {max(loss)}")
    before = " before clipping" if recorded.by_round("norms/clip_norm") else ""
    for words, name in ((f"norm of an update{before}", "norms"), ("gradient norm of a sample", "gradients")):
        medians = recorded.by_round(f"{name}/quantiles/0.5")
        if medians:
            exact.append(f"median {words} {_from_to(medians)}")
    of = set(recorded.by_round("clipping/of").values()) - {"nothing"}
    if recorded.mean_clip_factor and of:
        exact.append(f"mean clip factor of {' and '.join(sorted(of))} {_from_to(recorded.mean_clip_factor)}")
        exact.append(f"its mean spread {_from_to(recorded.clip_factor_spread)}")
        exact.append(f"share that is clipped {_from_to(recorded.by_round('clipping/clipped'))}")
    for words, name in _IN_A_LINE.items():
        values = recorded.by_round(name)
        if values:
            exact.append(f"{words} {_from_to(values)}")
    for words, name in _PAID_FOR.items():
        values = recorded.by_round(name)
        if values:
            (paid if recorded.was_paid_for("thresholds") else exact).append(f"{words} {_from_to(values)}")
    lines = [f"Recorded, {NOT_PRIVATE}", *(f"  {one}" for one in exact)] if exact else []
    return "\n".join([*lines, *(["Recorded, from what was paid for:"] if paid else []), *(f"  {one}" for one in paid)])


def _from_to(values: Mapping[int, float]) -> str:
    first, last = min(values), max(values)
    if values[first] == values[last]:
        return f"{values[last]:.4g}"
    return f"{values[first]:.4g} in round {first}, {values[last]:.4g} in round {last}"
