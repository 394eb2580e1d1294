"""What came out of a tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.privacy.certificate import Certificate
    from cloister.runs.result import Run
    from cloister.runs.trained_model import TrainedModel


@dataclass(frozen=True)
class Trial:
    """One candidate and how it did on held-out samples."""

    number: int
    settings: dict[str, Any]
    score: float | None
    """Mean over seeds; None where it failed."""
    spread: float | None = None
    """Standard deviation over seeds, where there are several."""
    seconds: float = 0.0
    error: str | None = None
    of: int | None = None
    """How many there will be, as far as this one was told when it was finished."""


@dataclass(frozen=True, repr=False)
class Tuned:
    """The best settings, and what is promised of them."""

    on: str
    settings: dict[str, Any]
    """Of the best candidate: the tuned keys alone."""
    values: dict[str, Any]
    """All keys of a run with these settings."""
    metric: str
    larger_is_better: bool
    score: float
    """Of the best candidate: on held-out samples, or as the private validation released it."""
    folder: Path | None
    note: str
    """What the guarantee of a run with these settings covers of the tuning."""
    trials: Sequence[Trial] = ()
    """All candidates; none where they are not released."""
    importance: Mapping[str, float] = field(default_factory=dict)
    """How much of the variation of the score each key explains."""
    final: Run | None = None
    """The best settings on all training data, tested once."""
    certificate: Certificate | None = None
    """Of the whole tuning where it was charged."""
    model: TrainedModel | None = None
    """The selected trial's, where the tuning was charged."""
    noise: float | None = None
    """The standard deviation of the noise in every candidate's score, where the tuning was charged."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={shown(value)}" for name, value in self.settings.items())
        return f"<Tuned on {self.on} data: {settings}; {self.metric} {self.score:.4g} held out>"

    @property
    def epsilon(self) -> float | None:
        """What the result costs: the whole tuning where it was charged, else the final run, if there was one."""
        if self.certificate is not None:
            return self.certificate.epsilon
        return None if self.final is None else self.final.epsilon


def shown(value: Any) -> str:
    """A setting as a table shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(trials: Sequence[Trial], metric: str, larger_is_better: bool) -> str:
    """The candidates, the best first."""
    keys = list(trials[0].settings) if trials else []
    header = ["trial", *keys, metric, "sd over seeds", "seconds"]
    lines = [" | ".join(header), " | ".join(["---"] * len(header))]
    for trial in ranked(trials, larger_is_better):
        score = "failed" if trial.score is None else f"{trial.score:.4f}"
        spread = "" if trial.spread is None else f"{trial.spread:.4f}"
        cells = [
            str(trial.number + 1),
            *(shown(trial.settings[key]) for key in keys),
            score,
            spread,
            f"{trial.seconds:.1f}",
        ]
        lines.append(" | ".join(cells))
    return "".join(f"| {line} |\n" for line in lines)


def ranked(trials: Sequence[Trial], larger_is_better: bool) -> list[Trial]:
    """The best first, failed ones last."""
    sign = -1 if larger_is_better else 1
    return sorted(trials, key=lambda one: (one.score is None, 0.0 if one.score is None else sign * one.score))
