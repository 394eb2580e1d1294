"""What an audit found: lower bounds on epsilon beside the certified upper bound, in words and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cloister.runs.files import read_bytes, write_json

GDP = (
    "that the trade-off curve is a Gaussian one, as that of Gaussian noise without sampling is: from the guesses "
    "follows mu, and from mu epsilon"
)
FAMILY = (
    "that the trade-off curve is that of the releases which were charged, under more or less noise: from the guesses "
    "follows the most noise that there can be, and from that epsilon"
)
ANY = "nothing but that trials are independent: (epsilon, delta) bounds what any test can reach"
ONE_RUN = "nothing but that every canary was in by a fair coin of its own (Steinke, Nasr & Jagielski 2023)"
FIT = (
    "that the canaries' scores are Gaussian, of the mean and deviation that were found: an estimate without "
    "confidence (Andrew et al. 2024)"
)


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon: that the true one is below it has a chance of at most 1 - confidence."""

    kind: str
    """worst_case, one_run or one_shot."""
    epsilon: float
    confidence: float | None
    """None for an estimate that has none."""
    assumes: str
    trials: int
    """Runs that were guessed about, or canaries of one run."""
    right: int
    """Guesses that were right."""
    guesses: int
    seconds: float
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Audit:
    """Both bounds of one method on its terms."""

    method: str
    unit: str
    neighbors: str
    rounds: int
    noise_multiplier: float | None
    delta: float
    certified: float
    """The upper bound: what the ledger of the audited rounds comes to."""
    bounds: tuple[LowerBound, ...]
    confirmation: LowerBound | None = None
    """A second audit with noise of its own, where the first found more than is certified."""
    label: str = ""

    @property
    def lower(self) -> float:
        """The largest lower bound that has a confidence."""
        return max((bound.epsilon for bound in self.bounds if bound.confidence is not None), default=0.0)

    @property
    def above(self) -> bool:
        """Whether a lower bound is above what is certified."""
        return self.lower > self.certified

    @property
    def exposed(self) -> bool:
        """Whether a second audit, at a confidence that leaves nothing to chance, found the same."""
        return self.above and self.confirmation is not None and self.confirmation.epsilon > self.certified

    @property
    def verdict(self) -> str:
        """One line."""
        name = self.label or self.method
        if self.exposed:
            assert self.confirmation is not None
            return (
                f"EXPOSED: {name} spends at least {self.confirmation.epsilon:.2f} (confidence "
                f"{self.confirmation.confidence:.4%}), certified {self.certified:.2f}: its guarantee does not hold."
            )
        if self.above:
            assert self.confirmation is not None
            return (
                f"{name}: {self.lower:.2f} is above {self.certified:.2f}, by chance: a second audit at confidence "
                f"{self.confirmation.confidence:.4%} found {self.confirmation.epsilon:.2f}."
            )
        if math.isinf(self.certified):
            return f"{name}: nothing is certified, and at least {self.lower:.2f} is spent."
        return (
            f"{name}: at least {self.lower:.2f} of the certified {self.certified:.2f} is spent; nothing wrong was "
            "found."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values, the verdict included; what is infinite is null."""
        content = asdict(self) | {"lower": self.lower, "exposed": self.exposed, "verdict": self.verdict}
        if math.isinf(self.certified):
            content["certified"] = None
        return content

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Audit:
        """The inverse of `to_json`."""
        plain = {name: value for name, value in content.items() if name not in ("lower", "exposed", "verdict")}
        plain["certified"] = math.inf if plain["certified"] is None else plain["certified"]
        plain["bounds"] = tuple(LowerBound(**bound) for bound in plain["bounds"])
        confirmation = plain["confirmation"]
        plain["confirmation"] = None if confirmation is None else LowerBound(**confirmation)
        return cls(**plain)

    def labeled(self, label: str) -> Audit:
        """The same under another name, for a table of several."""
        return replace(self, label=label)

    def __str__(self) -> str:
        """A table of the bounds, and the verdict."""
        lines = [f"{self.label or self.method}: certified epsilon {self.certified:.3f} at delta {self.delta:g}"]
        for bound in self.bounds:
            sure = "an estimate" if bound.confidence is None else f"confidence {bound.confidence:g}"
            words = "about" if bound.confidence is None else "at least"
            lines.append(f"  {bound.kind:<11} {words} {bound.epsilon:.3f} ({sure}); presumes {bound.assumes}")
        return "\n".join([*lines, self.verdict])


def save(audits: list[Audit], path: Path) -> None:
    """All of them as one JSON file."""
    write_json(path, [audit.to_json() for audit in audits])


def load(path: Path) -> list[Audit]:
    """Those of a file."""
    return [Audit.from_json(one) for one in json.loads(read_bytes(path))]
