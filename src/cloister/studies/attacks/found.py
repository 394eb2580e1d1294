"""What attacks on a run found, as a file in its folder. Training samples are in it: it is marked, and for its owner."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted, expect
from cloister.privacy.description import plain
from cloister.runs.files import read_json, write_atomically
from cloister.runs.recorded import MARK

FILE = "attacks.json"
_FORMAT = 2


@dataclass(frozen=True)
class Inverted:
    """An image of a client's, and what was made of its message. NOT PRIVATE."""

    client: int
    label: int
    guessed: int
    """Which class the message gave away, or seemed to."""
    image: list[list[float]]
    found: list[list[float]]
    correlation: float
    """Of both, pixel by pixel: 1 is the image itself, up to brightness and contrast."""


@dataclass(frozen=True)
class Membership:
    """How well members and others can be told apart. NOT PRIVATE."""

    attack: str
    """By which score, in words."""
    shadows: int
    """How many models were trained to compare with."""
    false_positives: list[float]
    true_positives: list[float]
    area: float
    """Under the curve: 0.5 is chance."""
    area_error: float
    """Its standard error."""
    at: dict[str, float]
    """The true positive rate, by a false positive rate."""
    between: dict[str, list[float]]
    """Its interval of 95 % (Clopper & Pearson), of this one model."""
    members: int
    others: int


@dataclass(frozen=True)
class Attacks:
    """What attacks on a run found, beside what it promises. NOT PRIVATE."""

    name: str
    epsilon: float | None
    """Certified; None without a promise."""
    delta: float | None
    unit: str
    steps: int
    """How many times the guarantee is used from a client's data with one sample to the same with another: once where
    neighbors replace, twice where they add or remove."""
    inversion: list[Inverted]
    membership: list[Membership]
    others: str = ""
    """Where samples come from that are no members."""

    @property
    def title(self) -> str:
        """As legends have it."""
        return "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.3g} per {self.unit}"

    def allowed(self, false_positive: float) -> float | None:
        """The true positive rate that the guarantee allows at most, where there is one."""
        if self.epsilon is None or self.delta is None:
            return None
        return most_true_positives(false_positive, *in_steps(self.epsilon, self.delta, self.steps))

    def to_json(self) -> dict[str, Any]:
        """All of it, with its mark, as plain data."""
        return {"format": _FORMAT, "mark": MARK, **plain(asdict(self))}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Attacks:
        """The inverse."""
        expect(found.get("format") == _FORMAT, f"attacks of format {_FORMAT}", found.get("format"), "make them again")
        known = {name: value for name, value in found.items() if name not in ("format", "mark")}
        known["inversion"] = [Inverted(**one) for one in known["inversion"]]
        known["membership"] = [Membership(**one) for one in known["membership"]]
        return cls(**known)


def most_true_positives(false_positive: float, epsilon: float, delta: float) -> float:
    """What a guarantee allows an attacker at most, who tells two neighbors apart:

        TPR <= exp(epsilon) FPR + delta     and     1 - FPR <= exp(epsilon) (1 - TPR) + delta

    >>> most_true_positives(0.01, math.log(2), 0.0)
    0.02
    """
    if math.isinf(epsilon):
        return 1.0
    grown = min(epsilon, 700.0)
    return min(1.0, math.exp(grown) * false_positive + delta, 1 - math.exp(-grown) * (1 - delta - false_positive))


def in_steps(epsilon: float, delta: float, steps: int) -> tuple[float, float]:
    """What (epsilon, delta) promises of worlds that are so many neighbors apart (group privacy).

    >>> in_steps(1.0, 0.0, 2)
    (2.0, 0.0)
    """
    grown = sum(math.exp(min(epsilon * step, 700.0)) for step in range(steps))
    return steps * epsilon, min(1.0, grown * delta)


def write_attacks(folder: Path, found: Attacks) -> Path:
    """Into a run's folder; no other file refers to it. It is for its owner alone."""
    write_atomically(folder / FILE, json.dumps(found.to_json(), indent=1).encode(), private=True)
    return folder / FILE


def read_attacks(folder: Path) -> Attacks | None:
    """What was written into a run's folder, if anything."""
    if not (folder / FILE).is_file():
        return None
    try:
        return Attacks.from_json(read_json(folder / FILE))
    except (TypeError, KeyError, AttributeError) as error:
        raise Corrupted(f"Expected attacks in {folder / FILE}, found others ({error}): make them anew.") from None
