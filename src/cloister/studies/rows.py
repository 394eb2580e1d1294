"""The rows of a study's table: runs that differ in their seed alone, taken together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.metric_text import SHARES, SMALLER_IS_BETTER
from cloister.runs.report.comparison import Compared, in_a_table, neighbors_in_short, series_name
from cloister.studies.statistics import Ranked, Scores, Summary, ranking, summary

_TESTED = ("data", "split", "fraction", "test_fraction", "test_file")
"""Keys that say on which samples a run is tested."""


@dataclass(frozen=True)
class Row:
    """Some runs that differ in their seed alone."""

    label: str
    swept: Mapping[str, Any]
    """The keys that vary within the study, with their values here; all but the seed."""
    runs: tuple[Compared, ...]
    more: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a table beside ours, such as what a paper reports."""

    @property
    def series(self) -> str:
        """The label with what is swept beside epsilon."""
        return series_name(self.label, self.swept)

    @property
    def target(self) -> float | None:
        """The epsilon that was asked for, where it was one number."""
        return self.runs[0].target

    @property
    def monitor(self) -> str:
        """The metric that was watched."""
        return self.runs[0].monitor

    @property
    def scores(self) -> Scores:
        """By seed, of the runs that have one."""
        return {run.seed: run.score for run in self.runs if run.score is not None}

    @property
    def about(self) -> Summary | None:
        """Mean and spread; None where no run has a score."""
        found = summary(list(self.scores.values())) if self.scores else None
        if found is None or found.low is None or found.high is None or self.monitor not in SHARES:
            return found
        return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))

    @property
    def private(self) -> bool:
        """Whether every run has a guarantee."""
        return self.epsilon is not None

    @property
    def epsilon(self) -> float | None:
        """The largest certified epsilon of its runs; None where some has no bound."""
        found = [run.epsilon for run in self.runs]
        known = [one for one in found if one is not None]
        return max(known) if len(known) == len(found) else None

    @property
    def delta(self) -> float | None:
        """The largest delta at which that holds."""
        return max(run.delta for run in self.runs) if self.private else None

    @property
    def neighbors(self) -> str | None:
        """What epsilon is about, in a few words, such as "add or remove one client"; None without a guarantee."""
        return neighbors_in_short(self.runs[0].adjacency) if self.private else None


def rows_of(runs: Iterable[Compared]) -> list[Row]:
    """Rows in the order in which their first runs come."""
    groups: dict[str, list[Compared]] = {}
    for run in runs:
        groups.setdefault(json.dumps([run.label, _row_keys(run.swept)]), []).append(run)
    return [Row(own[0].label, _row_keys(own[0].swept), tuple(own)) for own in groups.values()]


def _row_keys(swept: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in swept.items() if key != "seed"}


def keys_that_differ(rows: Sequence[Row]) -> list[str]:
    """Swept keys of which rows have several values: a list of one value leaves nothing to choose."""
    keys = dict.fromkeys(key for row in rows for key in row.swept)
    return [key for key in keys if len({repr(row.swept.get(key)) for row in rows}) > 1]


@dataclass(frozen=True)
class Group:
    """Rows that are compared with one another, in order."""

    title: str
    """At which epsilon."""
    monitor: str
    order: list[Ranked]


def ranked(rows: Iterable[Row], confidence: float = 0.95) -> list[Group]:
    """Rows with the same guarantee on the same data, ranked; what has no guarantee is ranked by itself, and so is every
    metric. Epsilon 8 for a client promises more than for one of its samples, and where one is replaced more than where
    one is added: these are not ranked together.
    """
    return [
        Group(
            title,
            monitor,
            ranking(
                {row.series: row.scores for row in own},
                larger_is_better=monitor not in SMALLER_IS_BETTER,
                confidence=confidence,
            ),
        )
        for (title, monitor), own in alike(rows).items()
    ]


def alike(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Rows with a score, those together that promise the same on the same data: by a title, and the metric."""
    found = [row for row in rows if row.scores]
    private = [row for row in found if row.private]
    units = {row.runs[0].unit for row in private}
    deltas = {row.delta for row in private}
    neighbors = {_kind(row) for row in private}
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in found:
        title = _title(row, unit=len(units) > 1, delta=len(deltas) > 1, neighbors=len(neighbors) > 1)
        groups.setdefault((title, row.monitor), []).append(row)
    return groups


def _title(row: Row, unit: bool, delta: bool, neighbors: bool) -> str:
    """What a group has in common, as far as others in the study have something else."""
    settings = row.runs[0].settings
    keys = (*_TESTED, "loss") if row.monitor == "loss" else _TESTED
    tested = [f"{key} {in_a_table(settings[key])}" for key in keys if settings.get(key) is not None]
    parts = [_guarantee(row)]
    if row.private and delta:
        parts.append(f"delta {row.delta:g}")
    if row.private and unit:
        parts.append(f"for one {row.runs[0].unit}")
    if row.private and neighbors:
        parts.append(f"to {_kind(row)}")
    return ", ".join([*parts, *tested])


def _kind(row: Row) -> str:
    """What neighbors differ in, briefly."""
    return "replace one" if row.runs[0].adjacency.startswith("replace") else "add or remove one"


def uses_up(spent: float | None, budget: float | None) -> bool:
    """Whether a run with a noise of its own ended because its budget did, but for a step or so that it could not pay.

    >>> uses_up(1.9993, 2.0), uses_up(0.691, 4.0), uses_up(1.0, None)
    (True, False, False)
    """
    return spent is not None and budget is not None and 0.99 * budget <= spent <= budget


def _guarantee(row: Row) -> str:
    if not row.private:
        return "without privacy"
    first, spent = row.runs[0], f"at epsilon {round_up(row.epsilon)}"
    if first.noise_chosen and not uses_up(row.epsilon, row.target):  # whatever budget is above it
        return spent
    if row.target is not None:
        return f"at epsilon {row.target:g}"
    asked = row.swept.get("epsilon")
    if asked is not None:
        return f"at epsilons {asked}"
    return "at epsilons of their own" if first.budgeted else spent
