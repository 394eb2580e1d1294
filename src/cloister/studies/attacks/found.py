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
_FORMAT = 1


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

    false_positives: list[float]
    true_positives: list[float]
    area: float
    """Under the curve: 0.5 is chance."""
    at: dict[str, float]
    """The true positive rate, by a false positive rate."""
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
    inversion: list[Inverted]
    membership: Membership | None

    @property
    def title(self) -> str:
        """As legends have it."""
        return "no privacy" if self.epsilon is None else f"epsilon {self.epsilon:.3g}"

    def to_json(self) -> dict[str, Any]:
        """All of it, with its mark, as plain data."""
        return {"format": _FORMAT, "mark": MARK, **plain(asdict(self))}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Attacks:
        """The inverse."""
        expect(found.get("format") == _FORMAT, f"attacks of format {_FORMAT}", found.get("format"), "make them again")
        known = {name: value for name, value in found.items() if name not in ("format", "mark")}
        known["inversion"] = [Inverted(**one) for one in known["inversion"]]
        known["membership"] = None if known["membership"] is None else Membership(**known["membership"])
        return cls(**known)


def most_true_positives(false_positive: float, epsilon: float, delta: float) -> float:
    """What a guarantee allows an attacker at most.

    >>> most_true_positives(0.01, math.log(2), 0.0)
    0.02
    """
    if math.isinf(epsilon):
        return 1.0
    grown = min(epsilon, 700.0)
    return min(1.0, math.exp(grown) * false_positive + delta, 1 - math.exp(-grown) * (1 - delta - false_positive))


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
