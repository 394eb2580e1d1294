"""Scores client by client, and how far apart they are.

They are exact: no noise is added, and no epsilon covers them. Whoever publishes them says something about every
client's test samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cloister.data.task import Task
from cloister.runs.metric_catalogue import CATALOGUE, Columns, Watched
from cloister.runs.metric_text import figure

NOT_PRIVATE = "Exact scores on each client's own test samples: not private, and no certificate covers them."


@dataclass(frozen=True)
class Summary:
    """How scores are spread over clients; each counts the same. `worst` and `best` are means over a tenth of them."""

    clients: int
    """How many have a score: of those with test samples, it may be undefined for some."""
    mean: float | None
    standard_deviation: float | None
    worst: float | None
    best: float | None
    spread: float | None
    """The largest minus the smallest."""


@dataclass(frozen=True)
class ClientScores:
    """The watched metric on every client's own test samples, by the client's name. Not private."""

    metric: str
    scores: Mapping[str, float | None]
    samples: Mapping[str, int]
    """How many test samples each has."""

    def __repr__(self) -> str:
        return f"<ClientScores: {summed_up(self.metric, self.summary)}, not private>"

    @property
    def summary(self) -> Summary:
        """How far apart clients are."""
        known = torch.tensor([score for score in self.scores.values() if score is not None], dtype=torch.float64)
        if not len(known):
            return Summary(0, None, None, None, None, None)
        ordered = known.sort(descending=not CATALOGUE[self.metric].larger_is_better).values  # the worst first
        tenth = -(-len(ordered) // 10)
        return Summary(
            clients=len(ordered),
            mean=float(ordered.mean()),
            standard_deviation=float(ordered.std(correction=0)),
            worst=float(ordered[:tenth].mean()),
            best=float(ordered[-tenth:].mean()),
            spread=float(ordered.max() - ordered.min()),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, marked as not private."""
        rows = [{"client": name, "samples": self.samples[name], "score": score} for name, score in self.scores.items()]
        marked = {"private": False, "note": NOT_PRIVATE, "metric": self.metric}
        return {**marked, "summary": vars(self.summary), "clients": rows}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ClientScores:
        """The inverse."""
        rows = found["clients"]
        scores = {row["client"]: row["score"] for row in rows}
        return cls(found["metric"], scores, {row["client"]: row["samples"] for row in rows})


def summed_up(metric: str, found: Summary) -> str:
    """A summary on one line."""
    if found.mean is None:
        return f"no client has a defined {metric}"
    mean, deviation, worst, best, spread = (
        figure(metric, value) for value in (found.mean, found.standard_deviation, found.worst, found.best, found.spread)
    )
    return (
        f"{metric} of {found.clients} clients: mean {mean}, standard deviation {deviation}, worst tenth {worst}, best "
        f"tenth {best}, spread {spread}"
    )


def scored_by_client(task: Task, watching: Watched, columns: Columns) -> ClientScores | None:
    """The watched metric on every client's own rows of the test set; None where clients have none."""
    if task.local_test is None or not len(task.local_test[0]):
        return None
    there = {name: column.cpu() for name, column in columns.items()}
    rows, owners = (part.cpu() for part in task.local_test)
    counts = torch.bincount(owners, minlength=task.clients)
    if watching.monitor.name == "accuracy":
        values = _plain(mean_by_client(there["right"], there["counted"], rows, owners))
    elif watching.monitor.name == "loss":
        values = _plain(mean_by_client(there["losses"], torch.ones_like(there["losses"]), rows, owners))
    else:
        pieces = torch.split(rows[owners.argsort(stable=True)], counts.tolist())
        each = ({name: column[own] for name, column in there.items()} for own in pieces)
        values = [watching.monitor(some, watching.kind, watching.classes) for some in each]
    named = {name_of(task, client): client for client in counts.nonzero().flatten().tolist()}
    return ClientScores(
        watching.monitor.name,
        {name: values[client] for name, client in named.items()},
        {name: int(counts[client]) for name, client in named.items()},
    )


def name_of(task: Task, client: int) -> str:
    """What a client is called; its number where it has no name."""
    return task.client_names[client] if task.client_names else str(client)


def mean_by_client(sums: Tensor, counts: Tensor, rows: Tensor, owners: Tensor) -> Tensor:
    """For each client the sum over its rows, divided by the counts of these; NaN where it has none."""
    most = int(owners.max()) + 1 if len(owners) else 0
    total, divisor = (
        torch.zeros(most, dtype=torch.float64, device=sums.device).index_add(0, owners, part[rows].double())
        for part in (sums, counts)
    )
    return total / divisor


def _plain(values: Tensor) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values.tolist()]
