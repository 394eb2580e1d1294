"""What the page of one run shows: what it is, and its numbers round by round as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError
from cloister.privacy.certificate_text import round_up
from cloister.privacy.description import RunDescription
from cloister.runs.communication import communication_of
from cloister.runs.folder import RunFolder
from cloister.runs.measurement_file import NAME as MEASUREMENTS
from cloister.runs.scores import watched_in
from cloister.studio.listing import Row, is_private
from cloister.studio.tail import Line, Tail

_TIED = ("hash", "ledger", "model", "cohort", "dropped", "nonfinite_updates")
"""What ties lines to other files; and who took part, which is not released where that is drawn in secret."""


@dataclass(frozen=True)
class RunView:
    """One run, as its files describe it."""

    path: Path
    description: RunDescription

    @classmethod
    def of(cls, path: Path) -> RunView:
        """That in a folder."""
        return cls(path, RunFolder.open(path).description())

    def facts(self, row: Row) -> list[tuple[str, str]]:
        """What a run is, in words."""
        d = self.description
        task, mechanism = d.task, d.method.mechanism
        noise = d.noise_multipliers or ((mechanism.noise_multiplier,) if mechanism.noise_multiplier else ())
        private = is_private(d)
        found = [
            ("method", d.method.name),
            ("data", f"{task.name}, {task.clients:,} clients"),
            ("protected", f"any one {d.method.unit}" if private else "nobody"),
            ("delta", f"{d.delta:g}" if private and d.delta is not None else "-"),
            ("noise multiplier", _between([f"{one:.4g}" for one in sorted(noise)]) or "none"),
            ("cohort", d.cohort.executed),
            ("model", f"{d.model.parameters:,} parameters"),
            ("must be trusted", d.trust if private else "everybody who sees the model"),
            ("seed", str(d.seed)),
            ("device", d.device),
        ]
        return [(name, words) for name, words in found if words]

    @property
    def banner(self) -> str | None:
        """What must stand above the figures."""
        if not is_private(self.description):
            return "This run has no noise, and promises nothing to anybody."
        if not self.description.secure_rng:
            return (
                "Simulation: noise follows from a seed, and whoever knows the seed can remove it. A real release needs "
                "secure_rng = true."
            )
        return None

    def fixed(self) -> dict[str, Any]:
        """What does not change while the run goes on, for the page's figures."""
        budgets = sorted({one.epsilon for one in self.description.budgets.values()})
        return {
            "rounds": self.description.rounds,
            "budgets": budgets if len(budgets) < 2 else [budgets[0], budgets[-1]],
            "delta": self.description.delta,
            "private": is_private(self.description),
            "unit": self.description.method.unit,
        }


def _between(texts: Sequence[str]) -> str:
    return "" if not texts else texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"


_MANY = 1000


class Follower:
    """The numbers of a run as they come."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._metrics = Tail(view.path / "metrics.jsonl")
        self._measured = Tail(view.path / MEASUREMENTS)
        self._lines: list[Line] = []
        # Where who takes part is secret, the expected number is counted: also for lines that say nobody came.
        self._expected = communication_of(view.description, [{"cohort": 0}] * _MANY).messages / _MANY

    def news(self) -> dict[str, Any] | None:
        """What is new; `anew` says that it stands in place of all before. None where nothing is."""
        anew, lines = self._metrics.read()
        again, measured = self._measured.read()
        self._lines = lines if anew else self._lines + lines
        recorded = [line for line in measured if "round" in line]
        if not (anew or again or lines or recorded):
            return None
        return {
            "anew": anew,
            "measured_anew": again,
            "lines": [_shown(line) | {"sent": self._sent(line)} for line in lines],
            "measured": [_measures(line, self._view.description.method.unit) for line in recorded],
            "metric": watched_in(self._lines)[0],
            "upload": self._upload(),
        }

    def _sent(self, line: Line) -> float:
        """Bytes of all clients in a round."""
        return self._view.description.upload_bytes * (self._expected or int(line["cohort"]))

    def _upload(self) -> str | None:
        return str(communication_of(self._view.description, self._lines)) if self._lines else None


def _shown(line: Line) -> Line:
    """Numbers that JSON has, and no others."""
    found = {name: _number(value) for name, value in line.items() if name not in _TIED}
    return {name: value for name, value in found.items() if not isinstance(value, (dict, list))}


def _number(value: Any) -> Any:
    if isinstance(value, float) or value in ("inf", "-inf", "nan"):
        return value if isinstance(value, float) and math.isfinite(value) else None
    return value


def _measures(line: Mapping[str, Any], unit: str) -> dict[str, Any]:
    """Of what was recorded in a round, what is drawn: norms of what is clipped, the threshold, and how much is."""
    exact, released = line.get("not_private") or {}, line.get("released") or {}
    norms = exact.get("norms") or {}
    of = "updates"
    if unit == "sample" and exact.get("gradients"):
        norms, of = exact["gradients"], "gradients"
    clipping, thresholds = exact.get("clipping") or {}, released.get("thresholds") or exact.get("thresholds") or {}
    limit = thresholds.get("clip_norm") if of == "gradients" or unit != "sample" else None
    quantiles = norms.get("quantiles") or {}
    return {
        "round": line["round"],
        "of": of,
        "mean": _number(norms.get("mean")),
        "low": _number(quantiles.get("0.05")),
        "high": _number(quantiles.get("0.95")),
        "clip": _number(norms.get("clip_norm") or clipping.get("clip_norm") or limit),
        "clipped": _number(clipping.get("clipped")),
        "clipped_of": clipping.get("of"),
    }


def agreement(path: Path) -> dict[str, Any]:
    """Whether all files of a run agree, and what it is certified for, computed afresh."""
    try:
        certificate = RunFolder.open(path).certificate()
    except CloisterError as error:
        return {"agree": False, "words": str(error)}
    if not certificate.private or not math.isfinite(certificate.epsilon):
        return {"agree": True, "words": "All files of this run agree. It has no guarantee."}
    spent, delta = round_up(certificate.epsilon), certificate.prices[0].delta
    words = f"All files of this run agree. Computed afresh from its ledger: epsilon {spent} at delta {delta:g}."
    return {"agree": True, "words": words, "epsilon": certificate.epsilon}
