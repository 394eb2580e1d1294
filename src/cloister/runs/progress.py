"""The line that a run shows: round, the metric that is watched, epsilon spent of the budget, rate and time left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cloister.privacy.certificate_text import round_up
from cloister.runs.metric_text import figure
from cloister.runs.progress_line import Part, ProgressLine

Budget = float | Sequence[float] | None
"""Epsilon: of everybody, of each client, or none."""


class Progress(ProgressLine):
    """The line of one run."""

    def __init__(self, show: bool | None, rounds: int, title: str, budget: Budget = None, **more: Any) -> None:
        super().__init__(show, rounds, **more)
        self._title, self._budget, self._metric = Part(title, style="bold", weight=2), budget, Part("")
        self.update(0, [self._title, Part("preparing", weight=9)])

    def begin(self, done: int) -> None:
        """The first round begins, or the one after those that were done before."""
        self.restart(self.total, done)
        self.update(done, [self._title, *round_parts(done, self.total)])

    def advance(self, line: Mapping[str, Any]) -> None:
        """One round is done; `line` is its line of metrics."""
        if not self.shown:
            return
        self.keep_time()
        self._metric = metric_part(line) or self._metric
        parts = [*round_parts(line["round"], self.total), self._metric, epsilon_part(line["epsilon"], self._budget)]
        self.update(line["round"], [self._title, *parts])


def round_parts(done: int, rounds: int) -> list[Part]:
    """Where a run is."""
    return [Part(f"round {done}/{rounds}", f"{done}/{rounds}", weight=9)]


def metric_part(line: Mapping[str, Any]) -> Part | None:
    """The metric that is watched, where the round was tested."""
    name = line.get("monitor", "accuracy")
    value = line.get(name)
    return None if value is None else Part(f"{name} {figure(name, value)}", figure(name, value), "green", 7)


def epsilon_part(epsilon: float | None, budget: Budget) -> Part:
    """What was spent, rounded upwards, of what may be."""
    if epsilon is None or math.isinf(epsilon):
        return Part("no privacy", style="red", weight=8)
    spent, allowed = round_up(epsilon, 2), _most(budget)
    of = "" if allowed is None else f" of {allowed:g}"
    return Part(f"epsilon {spent}{of}", f"epsilon {spent}" if of else f"eps {spent}", "magenta", 8)


def _most(budget: Budget) -> float | None:
    if budget is None or isinstance(budget, (int, float)):
        return budget
    return max(budget, default=None)
