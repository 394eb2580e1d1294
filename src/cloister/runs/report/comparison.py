"""One run of a comparison after the other, and the settings in which they differ; `studies` has them over seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloister.privacy.certificate_text import round_up
from cloister.runs import measurement_file
from cloister.runs.folder import RunFolder
from cloister.runs.metric_text import figure
from cloister.runs.recorded import NOT_PRIVATE
from cloister.runs.report.runs import kept_lines
from cloister.runs.report.style import new_table
from cloister.runs.scores import SELECTED_ON_TEST, best_of, last_of, nonfinite_share, watched_in

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
    unit: str = ""
    """Whom epsilon protects: a client or a sample; empty without a guarantee."""
    budgeted: bool = False
    """Whether an epsilon was asked for, be it one for each client."""
    noise_chosen: bool = False
    """Whether its noise was given, and not derived from a budget: epsilon is then what came of it."""
    nonfinite: float = 0.0
    """The share of its updates that were not finite, and counted as zero."""
    swept: Mapping[str, Any] = field(default_factory=dict)
    """The keys that vary within the comparison, with their values here."""
    seed: int = 0

    @property
    def series(self) -> str:
        """The label, with what is swept beside seed and epsilon: runs that differ in these alone are one series."""
        return series_name(self.label, self.swept)


def series_name(label: str, swept: Mapping[str, Any]) -> str:
    """A label, with the values of what is swept beside seed and epsilon.

    >>> series_name("dp_fedavg", {"epsilon": 8.0, "lr": 0.1, "seed": 3})
    'dp_fedavg lr=0.1'
    """
    return " ".join([label, *(f"{key}={in_a_table(swept[key])}" for key in swept if key not in ("epsilon", "seed"))])


def neighbors_in_short(adjacency: str) -> str:
    """What a certificate says of neighbors, without the details.

    >>> neighbors_in_short("replace one client: all its data become any others")
    'replace one client'
    """
    return re.split("[:,;]", adjacency)[0]


def in_a_table(value: Any) -> str:
    """A setting's value as tables show it; - where there is none."""
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(in_a_table, value)) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def compared(
    label: str,
    target: float | None,
    folder: RunFolder,
    settings: Mapping[str, Any],
    swept: Mapping[str, Any] | None = None,
    noise_chosen: bool = False,
) -> Compared:
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
        *watched_in(kept),
        best_on_test=None if best is None else best.value,
        best_round=None if best is None else best.round,
        mean_client_accuracy=last_of(kept, "mean_client_accuracy"),
        not_private=_on_training_samples(folder),
        adjacency="" if certificate.prices[0].epsilon_pld is None else certificate.adjacency,
        unit="" if certificate.prices[0].epsilon_pld is None else str(certificate.unit),
        nonfinite=nonfinite_share(lines),
        budgeted=bool(folder.description().budgets),
        noise_chosen=noise_chosen,
        swept=swept or {},
        seed=folder.description().seed,
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
    rounds = f"{row.rounds} round{'' if row.rounds == 1 else 's'}"
    return f"{score}, epsilon {round_up(row.epsilon)} after {rounds}, {row.seconds:.1f} s"


def comparison_scores_table(rows: Sequence[Compared]) -> Table:
    """Run by run: the score after the last round, the best over the rounds with its mark, and the mean over clients."""
    name = monitor_of(rows)
    clients = any(row.mean_client_accuracy is not None for row in rows)
    trained = any(row.not_private for row in rows)
    more = (("mean client accuracy",) if clients else ()) + (("train **", "gap **") if trained else ())
    seeds = any(row.seed != rows[0].seed for row in rows)
    table = new_table("method", "epsilon", *(("seed",) if seeds else ()), f"last {name}", "best *", "in round *", *more)
    table.columns[0].no_wrap = True
    for row in rows:
        own = [figure("accuracy", row.mean_client_accuracy)] if clients else []
        exact = [figure("accuracy", row.not_private.get(key)) for key in ("train_accuracy", "accuracy_gap")]
        table.add_row(
            row.series,
            "-" if row.target is None else f"{row.target:g}",
            *([str(row.seed)] if seeds else ()),
            figure(row.monitor, row.score),
            figure(row.monitor, row.best_on_test),
            "-" if row.best_round is None else str(row.best_round),
            *own,
            *(exact if trained else ()),
        )
    table.caption = f"* the best of all rounds, {SELECTED_ON_TEST}: it promises more than a new run would keep."
    table.caption += f"\n** {NOT_PRIVATE}" if trained else ""
    return table


def settings_text(settings: Mapping[str, Mapping[str, Any]], told: Sequence[str] = ()) -> str:
    """A line for every setting in which the methods of a comparison differ: the usual value, and who has another.

    `told`: keys that all rows have in a column of their own."""
    keys = [key for key in next(iter(settings.values()), {}) if key not in told]
    if not keys:
        return f"\nAll {'other ' if told else ''}settings that the methods share are the same."
    lines = ["\nSettings in which the methods differ (- where a method has none):"]
    for key in keys:
        by_value: dict[str, list[str]] = {}
        for label, own in settings.items():
            by_value.setdefault(in_a_table(own[key]), []).append(label)
        usual, *others = sorted(by_value.items(), key=lambda item: -len(item[1]))
        rest = "; ".join(f"{value}: {', '.join(labels)}" for value, labels in others)
        lines.append(f"  {key} {usual[0]}, but {rest}")
    return "\n".join(lines)


def monitor_of(rows: Sequence[Compared]) -> str:
    """The metric that the runs of a comparison watched."""
    names = dict.fromkeys(row.monitor for row in rows)
    return next(iter(names)) if len(names) == 1 else "score"
