"""Campaigns: cases that follow from a seed and a number, what was counted in them, and what was found wrong.

A campaign that is interrupted goes on where it stopped: what was counted is kept in a file after every few cases.
"""

from __future__ import annotations

import json
import resource
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.runs.files import write_atomically

SECONDS = 120


class Hangs(BaseException):
    """A case did not end."""


@dataclass
class Tally:
    """What a campaign has come to."""

    cases: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"cases": self.cases, "counts": dict(sorted(self.counts.items())), "wrong": self.wrong[:200]}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Tally:
        return cls(found["cases"], Counter(found["counts"]), list(found["wrong"]))


Case = Callable[[int, Tally], None]
"""(number, what is counted): one case; raises for what must not happen."""


@dataclass(frozen=True)
class Campaign:
    """So many cases. `make(folder, seed)` gives the function that runs one; `least`: so many at the smallest scale."""

    name: str
    about: str
    cases: int
    make: Callable[[Path, int], Case]
    least: int = 1
    every: int = 50
    seconds: int = SECONDS
    """A case that takes longer hangs."""

    def size(self, scale: float) -> int:
        """How many cases at a scale."""
        return min(self.cases, max(self.least, round(self.cases * scale))) if scale <= 1 else round(self.cases * scale)


def run(
    campaign: Campaign, folder: Path, kept: Path, seed: int, scale: float, tell: Callable[[Tally, int], None]
) -> Tally:
    """All cases of a campaign, or those that are left; `tell` is told on the way."""
    name = kept / f"{campaign.name}-{seed}.json"
    tally = Tally.from_json(json.loads(name.read_text())) if name.exists() else Tally()
    size = campaign.size(scale)
    case = campaign.make(folder, seed)
    while tally.cases < size:
        number = tally.cases
        try:
            with limited(campaign.seconds):
                case(number, tally)
        except Hangs:
            tally.wrong.append(f"case {number}: no end after {campaign.seconds} s")
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            tally.wrong.append(f"case {number}: {type(error).__name__}: {str(error)[:300]} ({place})")
        tally.cases += 1
        if tally.cases % campaign.every == 0 or tally.cases == size:
            kept.mkdir(parents=True, exist_ok=True)
            write_atomically(name, json.dumps(tally.to_json()).encode())
        tell(tally, size)
    return tally


@contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    """Whatever takes too long is stopped."""

    def stop(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def limit_memory(more: int = 6 * 2**30) -> None:
    """Whoever asks for much more memory than there is now gets an error instead of it."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.getrlimit(resource.RLIMIT_AS)[1]))
