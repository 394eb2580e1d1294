"""Methods side by side at the same epsilons, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.privacy.certificate_text import round_up
from cloister.runs import measurement_file
from cloister.runs.folder import RunFolder
from cloister.runs.metric_text import figure
from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.runs import kept_lines
from cloister.runs.report.style import line_colors, new_figure, new_table
from cloister.runs.scores import SELECTED_ON_TEST, best_of, last_of, watched_in

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Compared:
    """One run of a comparison."""

    label: str
    target: float | None
    accuracy: float | None
    epsilon: float | None
    delta: float
    noise_multiplier: float | None
    rounds: int
    upload_bytes: int
    seconds: float
    settings: Mapping[str, Any]
    """Those in which the runs of the comparison differ."""
    monitor: str = "accuracy"
    score: float | None = None
    """Of the metric that was watched."""
    best_on_test: float | None = None
    """The best of its values over the rounds: selected on test data."""
    best_round: int | None = None
    mean_client_accuracy: float | None = None
    """The mean over clients of the accuracy on each one's own test samples, where they have some."""
    not_private: Mapping[str, Any] = field(default_factory=dict)
    """Train accuracy and its distance from the test, where that was recorded, with the mark."""
    adjacency: str = ""
    """In what the neighboring data sets differ that epsilon is about, in words."""


def compared(label: str, target: float | None, folder: RunFolder, settings: Mapping[str, Any]) -> Compared:
    """A run as its folder tells."""
    certificate, lines = folder.certificate(), folder.metrics()
    kept, best = kept_lines(folder, lines), best_of(lines)
    return Compared(
        label,
        target,
        last_of(kept, "accuracy"),
        certificate.prices[0].epsilon_pld,
        certificate.prices[0].delta,
        certificate.noise_multiplier,
        certificate.rounds_charged,
        folder.description().upload_bytes,
        sum(line["seconds"] for line in lines),
        settings,
        *watched_in(lines),
        best_on_test=None if best is None else best.value,
        best_round=None if best is None else best.round,
        mean_client_accuracy=last_of(kept, "mean_client_accuracy"),
        not_private=_on_training_samples(folder),
        adjacency="" if certificate.prices[0].epsilon_pld is None else certificate.adjacency,
    )


def _on_training_samples(folder: RunFolder) -> dict[str, Any]:
    """The last train accuracy of a run that recorded it, marked."""
    recorded = measurement_file.read(folder.path)
    gaps = {} if recorded is None else recorded.by_round("train/accuracy_gap")
    if recorded is None or not gaps:
        return {}
    last = max(gaps)
    train = recorded.by_round("train/accuracy")[last]
    return {"mark": NOT_PRIVATE, "train_accuracy": train, "accuracy_gap": gaps[last]}


def in_words(row: Compared) -> str:
    """A run in half a sentence."""
    score = f"no {row.monitor}" if row.score is None else f"{row.monitor} {figure(row.monitor, row.score)}"
    return f"{score}, epsilon {round_up(row.epsilon)} after {row.rounds} rounds, {row.seconds:.1f} s"


def comparison_table(rows: Sequence[Compared]) -> Table:
    """Methods below each other, epsilons side by side."""
    targets = sorted({row.target for row in rows if row.target is not None}, reverse=True)
    name = _monitor_of(rows)
    heads = [f"{name} at {t:g}" for t in targets] or [name]
    table = new_table("method", *heads, *(f"spent of {t:g}" for t in targets), "upload")
    table.columns[0].no_wrap = True
    for label in dict.fromkeys(row.label for row in rows):
        own = {row.target: row for row in rows if row.label == label}
        first = next(iter(own.values()))
        if None in own:
            cells = [
                figure(own[None].monitor, own[None].score),
                *[""] * (len(targets) - 1),
                *["infinity"] * len(targets),
            ]
        else:
            there = [own.get(t) for t in targets]  # a comparison that was interrupted has some of them
            cells = ["" if row is None else figure(row.monitor, row.score) for row in there]
            cells += ["" if row is None else round_up(row.epsilon) for row in there]
        table.add_row(label, *cells, f"{first.upload_bytes / 1000:.1f} kB")
    table.caption = _adjacencies(rows)
    return table


def _adjacencies(rows: Sequence[Compared]) -> str | None:
    """What is said where one epsilon does not mean the same for all."""
    labels: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.target is not None and row.adjacency:
            labels.setdefault(row.adjacency, {})[row.label] = None
    if len(labels) < 2:
        return None
    parts = [f"{', '.join(own)}: {adjacency}" for adjacency, own in labels.items()]
    return "An epsilon is not about the same neighbors for all: " + "; ".join(parts) + "."


def comparison_scores_table(rows: Sequence[Compared]) -> Table:
    """Run by run: the score after the last round, the best over the rounds with its mark, and the mean over clients."""
    name = _monitor_of(rows)
    clients = any(row.mean_client_accuracy is not None for row in rows)
    trained = any(row.not_private for row in rows)
    more = (("mean client accuracy",) if clients else ()) + (("train **", "gap **") if trained else ())
    table = new_table("method", "epsilon", f"last {name}", "best *", "in round *", *more)
    table.columns[0].no_wrap = True
    for row in rows:
        own = [figure("accuracy", row.mean_client_accuracy)] if clients else []
        exact = [figure("accuracy", row.not_private.get(key)) for key in ("train_accuracy", "accuracy_gap")]
        table.add_row(
            row.label,
            "infinity" if row.target is None else f"{row.target:g}",
            figure(row.monitor, row.score),
            figure(row.monitor, row.best_on_test),
            "-" if row.best_round is None else str(row.best_round),
            *own,
            *(exact if trained else ()),
        )
    table.caption = f"* the best of all rounds, {SELECTED_ON_TEST}: it promises more than a new run would keep."
    table.caption += f"\n** {NOT_PRIVATE}" if trained else ""
    return table


def settings_text(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for every setting in which the methods of a comparison differ: the usual value, and who has another."""
    keys = list(next(iter(settings.values()), {}))
    if not keys:
        return "\nAll settings that the methods share are the same."
    lines = ["\nSettings in which the methods differ (- where a method has none):"]
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for label, own in settings.items():
            by_value.setdefault("-" if own[key] is None else str(own[key]), []).append(label)
        usual, *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
        rest = "; ".join(f"{value}: {', '.join(labels)}" for value, labels in others)
        lines.append(f"  {key} {usual[0]}, but {rest}")
    return "\n".join(lines)


def _monitor_of(rows: Sequence[Compared]) -> str:
    """The metric that the runs of a comparison watched."""
    names = dict.fromkeys(row.monitor for row in rows)
    return next(iter(names)) if len(names) == 1 else "score"


def comparison_plot(rows: Sequence[Compared], path: Path) -> None:
    """The watched metric of every method, a dot for each epsilon; what is not private is a line."""
    labels = list(dict.fromkeys(row.label for row in rows if row.target is not None))
    targets = sorted({row.target for row in rows if row.target is not None})
    picture, (axes,) = new_figure(1)
    picture.set_size_inches(7.0, 1.2 + 0.28 * max(len(labels), 4))
    for color, target in zip(line_colors(len(targets)), targets, strict=True):
        here = {row.label: row.score for row in rows if row.target == target and row.score is not None}
        places = [labels.index(label) for label in here]
        axes.plot(list(here.values()), places, "o", color=color, label=f"epsilon {target:g}")
    for row in rows:
        if row.target is None and row.score is not None:
            axes.axvline(row.score, color="0.5", linestyle="--", linewidth=1, label=f"{row.label}, no privacy")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", color="0.92")
    axes.set(xlabel=f"test {_monitor_of(rows)}")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    if rows and rows[0].settings:
        picture.supxlabel(f"not the same for all: {', '.join(rows[0].settings)}", fontsize=7, wrap=True)
    picture.savefig(path)
