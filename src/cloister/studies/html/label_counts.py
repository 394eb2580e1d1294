"""How many samples of each class each client holds: exact, so only of simulations, and only where the data are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.errors import CloisterError
from cloister.privacy.description import json_hash
from cloister.studies.html.gather import RunData, Study

_MOST_MATRICES = 4


@dataclass(frozen=True)
class LabelCounts:
    """A row for each client, a number for each class."""

    title: str
    counts: list[list[int]]
    classes: list[str]
    clients: tuple[str, ...]
    """Their names, where they have some."""


def label_counts(study: Study) -> tuple[list[LabelCounts], list[str]]:
    """Of each way in which the data of these runs were dealt, and a sentence for each that cannot be shown."""
    found: list[LabelCounts] = []
    missing: dict[str, None] = {}
    by_data: dict[str, tuple[RunData, dict[str, Any]]] = {}
    for run in study.runs:
        if run.certificate.secure_rng:
            missing["Runs with secure randomness are no simulations: who holds what is not shown."] = None
        elif not run.keys:
            missing["Runs that were started from Python do not say how their data are made anew."] = None
        else:
            keys = _data_keys(run.keys)
            by_data.setdefault(json_hash(keys), (run, keys))
    for run, keys in list(by_data.values())[:_MOST_MATRICES]:
        try:
            counted = _counted(run, keys)
        except (CloisterError, OSError) as error:
            missing[f"The data of {run.path.name} cannot be made anew here: {error}"] = None
            continue
        if counted is None:
            missing[f"The labels of {run.description.task.name} are no classes."] = None
        else:
            found.append(counted)
    if len(by_data) > _MOST_MATRICES:
        missing[f"{len(by_data)} partitions occur; the first {_MOST_MATRICES} are shown."] = None
    return found, list(missing)


def _data_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a run from which its data are made."""
    from cloister.runs.signatures import introspected

    parts = [(part, str(keys[part])) for part in ("data", "partition") if part in keys]
    known = {key.name for part, option in parts for key in introspected().keys_of(part, option)}
    return {key: value for key, value in keys.items() if key in known or key in ("data", "partition")}


def _counted(run: RunData, keys: Mapping[str, Any]) -> LabelCounts | None:
    from cloister.data.plots import label_counts
    from cloister.runs.config import build_task

    task, partition = build_task(keys)
    if not task.loss.classes or task.classes is None:
        return None
    if task.clients != run.description.task.clients:
        raise CloisterError(
            f"Expected {run.description.task.clients} clients, found {task.clients}: the data changed since."
        )
    names: Sequence[str] = task.class_names or [str(number) for number in range(task.classes)]
    title = f"{task.name}, {partition} partition, {task.clients:,} clients"
    return LabelCounts(title, label_counts(task).tolist(), list(names), tuple(task.client_names))
