"""What came out of a cell, seed by seed, read from the folders of its runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.runs import report
from cloister.runs.folder import RunFolder
from cloister.runs.scores import best_of, last_of
from cloister.studies.papers.cells import PaperCell
from cloister.studies.papers.files import PaperFile
from cloister.studies.papers.reported import Reported
from cloister.studies.statistics import Summary, summary

PERCENT = 100.0


@dataclass(frozen=True)
class Outcome:
    """One run: scores in percent, and what it cost."""

    scores: dict[str, float | None]
    """By metric of a paper (`files.METRICS`)."""
    measured: dict[str, float | None]
    """By quantity that a paper reports beside accuracy."""
    epsilon: float | None
    """What the run cost at its delta, as executed; None without privacy."""
    delta: float
    strict_epsilon: float | None
    """The same at the smallest delta of the certificate."""
    strict_delta: float
    claimed: float | None
    """What the paper's own arithmetic says of the run, where the run replicates what the authors did."""
    noise_multiplier: float | None
    rounds: int
    rounds_planned: int
    adjacency: str
    seconds: float
    lines: list[dict[str, Any]]
    """Evaluated rounds."""
    machine: dict[str, Any]
    """What it was computed with: processor, GPU, engine."""


def outcome_of(folder: RunFolder) -> Outcome:
    """Of a run that has ended."""
    about, certificate, lines = report.compared("", None, folder, {}), folder.certificate(), folder.metrics()
    best, clients = best_of(lines, "accuracy"), best_of(lines, "mean_client_accuracy")
    strict = certificate.prices[-1]
    evaluated = [line for line in lines if isinstance(line.get("accuracy"), (int, float))]
    return Outcome(
        {
            "final": _percent(last_of(lines, "accuracy")),
            "best": _percent(None if best is None else best.value),
            "best_mean_client": _percent(None if clients is None else clients.value),
        },
        {
            "train_accuracy": _percent(about.not_private.get("train_accuracy")),
            "accuracy_gap": _percent(about.not_private.get("accuracy_gap")),
            "megabytes": _megabytes(folder),
        },
        about.epsilon,
        about.delta,
        strict.epsilon_pld,
        strict.delta,
        None if certificate.claimed is None else certificate.claimed["epsilon"],
        certificate.noise_multiplier,
        certificate.rounds_charged,
        certificate.rounds_planned,
        certificate.adjacency,
        about.seconds,
        evaluated,
        _machine(folder),
    )


def _machine(folder: RunFolder) -> dict[str, Any]:
    engine: dict[str, Any] = json.loads(folder.checkpoint().facts["engine"])
    first: dict[str, Any] = next(iter(engine.get("machines", [])), {})
    return {"engine": engine.get("engine"), "processor": first.get("processor"), "gpu": first.get("gpu")}


def _percent(value: float | None) -> float | None:
    return None if value is None else PERCENT * value


def _megabytes(folder: RunFolder) -> float:
    """What a client sent on average."""
    description, lines = folder.description(), folder.metrics()
    sent: int = sum(line["cohort"] for line in lines)
    return description.upload_bytes * sent / description.task.clients / 1e6


@dataclass(frozen=True)
class Row:
    """A cell beside what the paper reports of it."""

    cell: PaperCell
    outcomes: Mapping[int, Outcome]
    """By seed; empty where it was not run."""
    reported: Reported | None
    quantity: str = "accuracy"
    metric: str = "final"

    def by_seed(self, metric: str | None = None) -> dict[int, float]:
        """What compares with the paper's number, as far as there is something."""
        name = metric or self.metric
        if self.quantity == "accuracy":
            found = {seed: one.scores[name] for seed, one in self.outcomes.items()}
        else:
            found = {seed: one.measured[self.quantity] for seed, one in self.outcomes.items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def ours(self, metric: str | None = None) -> Summary | None:
        """Mean and deviation over seeds."""
        values = list(self.by_seed(metric).values())
        return summary(values) if values else None

    @property
    def epsilon(self) -> float | None:
        """The largest that a seed cost; None where some seed has no bound, or without runs."""
        found = [one.epsilon for one in self.outcomes.values()]
        known = [one for one in found if one is not None]
        return max(known) if known and len(known) == len(found) else None

    @property
    def any(self) -> Outcome | None:
        """One of them, for what all have in common."""
        return next(iter(self.outcomes.values()), None)


def rows_of(file: PaperFile, cells: list[PaperCell], outcomes: Mapping[str, Mapping[int, Outcome]]) -> list[Row]:
    """A row for every cell, and further ones where the paper reports more than accuracy; outcomes by cells' names."""
    found = []
    for cell in cells:
        own = outcomes.get(cell.name, {})
        beside = {one.quantity: one for one in file.reported if one.at == cell.at}
        found.append(Row(cell, own, beside.pop("accuracy", None), metric=file.metric))
        if not cell.replicates:
            found += [Row(cell, own, one, one.quantity, file.metric) for one in beside.values()]
    return found
