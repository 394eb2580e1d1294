"""Which runs and studies there are, in a few values each. Files are read again when they have changed, and not before.

What stands in a list is what files say; the page of a run also says whether they agree.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError
from cloister.privacy.certificate_text import round_up
from cloister.privacy.description import RunDescription
from cloister.runs.files import read_json
from cloister.runs.folder import RunFolder, is_publication
from cloister.runs.metric_text import figure
from cloister.runs.scores import watched_in
from cloister.studio.places import DAMAGED, Places
from cloister.studio.tail import Line, Writers, last_lines

DEEPEST = 3
"""As deep as `cloister report` looks for runs."""
_FILES = ("description.json", "ledger.jsonl", "metrics.jsonl", "measurements.jsonl", "certificate.json")

Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Row:
    """A run in a few values; of one that cannot be read, the reason alone."""

    name: str
    state: str
    """ended, running, interrupted or broken."""
    reason: str = ""
    method: str = ""
    data: str = ""
    unit: str = ""
    metric: str = "accuracy"
    score: float | None = None
    epsilon: float | None = None
    """Spent so far; None without a bound."""
    at_least: bool = False
    """Whether the ledger has charges for a round that has no line yet: more was spent then."""
    budget: float | None = None
    delta: float | None = None
    rounds: int = 0
    planned: int = 0
    written: float = 0.0


@dataclass(frozen=True)
class StudyRow:
    """A folder with runs inside."""

    name: str
    kind: str
    """comparison, reproduction, tuning or folder."""
    runs: tuple[Row, ...]

    @property
    def written(self) -> float:
        """When something was written last."""
        return max((run.written for run in self.runs), default=0.0)

    def count(self, state: str) -> int:
        """How many runs are in a state."""
        return sum(run.state == state for run in self.runs)


@dataclass(frozen=True)
class Listing:
    """All that is in a folder."""

    runs: tuple[Row, ...] = ()
    studies: tuple[StudyRow, ...] = ()
    others: tuple[tuple[str, str], ...] = ()
    """Folders that are neither, with the reason."""


@dataclass
class Lister:
    """Lists a folder again and again."""

    places: Places
    writers: Writers = field(default_factory=Writers)
    _known: dict[Path, tuple[Stamp, Row]] = field(default_factory=dict, init=False)

    def all(self) -> Listing:
        """The root: a run, a study, or a folder of both."""
        root = self.places.root
        if not root.is_dir():
            return Listing()
        if (root / "description.json").is_file():
            return Listing(runs=(self.row(root),))
        if _kind(root) is not None:
            return Listing(studies=(self.study(root),))
        runs, studies, others = [], [], []
        for path in _below(root):
            outside = self.places.outside(path)
            if outside is not None:
                others.append((self.places.shown(path), outside))
            elif is_publication(path):
                others.append((self.places.name(path), _PUBLISHED))
            elif (path / "description.json").exists():
                runs.append(self.row(path))
            else:
                study = self.study(path)
                if study.runs:
                    studies.append(study)
                else:
                    others.append((self.places.name(path), _NOTHING))
        newest = sorted(runs, key=lambda row: -row.written), sorted(studies, key=lambda row: -row.written)
        return Listing(tuple(newest[0]), tuple(newest[1]), tuple(others))

    def study(self, path: Path) -> StudyRow:
        """A folder and all runs inside."""
        runs = tuple(self.row(one) for one in self._runs(path, 0, set()))
        return StudyRow(self.places.name(path), _kind(path) or "folder", runs)

    def _runs(self, path: Path, depth: int, seen: set[Path]) -> Iterator[Path]:
        """Each folder once: links that lead upwards would multiply them."""
        for one in _below(path):
            if one.resolve() in seen or self.places.outside(one) is not None:
                continue
            seen.add(one.resolve())
            if (one / "description.json").exists():
                yield one
            elif depth + 1 < DEEPEST:
                yield from self._runs(one, depth + 1, seen)

    def row(self, path: Path) -> Row:
        """One run."""
        stamp = stamps(path)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = stamp, self._read(path, stamp)
            self._known[path] = known
        row = known[1]
        if row.state in ("broken", "ended"):
            return row
        return Row(**{**vars(row), "state": "running" if self.writers.at_work(path) else "interrupted"})

    def _read(self, path: Path, stamp: Stamp) -> Row:
        name, written = self.places.name(path), max((one[0] for one in stamp if one), default=0) / 1e9
        try:
            description = RunFolder.open(path).description()
            lines = last_lines(path / "metrics.jsonl")
            return _expect_shown(Row(name, written=written, **_digest(path, description, lines)))
        except CloisterError as error:
            return Row(name, "broken", str(error), written=written)
        except (OSError, *DAMAGED) as error:
            reason = f"Expected the files of a run in {path}, found {type(error).__name__} ({error}): restore them."
            return Row(name, "broken", reason, written=written)


def _expect_shown(row: Row) -> Row:
    """Refuse values that cannot be written on a page, here, where it keeps nobody from seeing other runs."""
    if not isinstance(row.metric, str):
        raise TypeError(f"a metric called {row.metric!r}")
    figure(row.metric, row.score)
    if row.epsilon is not None:
        round_up(row.epsilon)
    for text in (row.name, row.method, row.data, row.unit, row.metric):
        text.encode()
    return row


def _digest(path: Path, description: RunDescription, lines: Sequence[Line]) -> dict[str, Any]:
    metric, score = watched_in(lines)
    ended = (path / "certificate.json").exists()
    return {
        "state": "ended" if ended else "interrupted",
        "method": description.method.name,
        "data": description.task.name,
        "unit": description.method.unit,
        "metric": metric,
        "score": score,
        "epsilon": _certified(path) if ended else spent_in(lines),
        "at_least": not ended and _charged_since(path, lines),
        "budget": max((one.epsilon for one in description.budgets.values()), default=None),
        "delta": description.delta if is_private(description) else None,
        "rounds": int(lines[-1]["round"]) if lines else 0,
        "planned": description.rounds,
    }


def is_private(description: RunDescription) -> bool:
    """Whether there is noise at all."""
    mechanism = description.method.mechanism
    return mechanism.place != "nowhere" and bool(mechanism.noise_multiplier or description.noise_multipliers)


def spent_in(lines: Sequence[Line]) -> float | None:
    """What had been spent by the last line."""
    found = float(lines[-1]["epsilon"]) if lines else 0.0
    return found if math.isfinite(found) else None


def _charged_since(path: Path, lines: Sequence[Line]) -> bool:
    """Whether something was charged after the last line was written. A round pays before it computes anything."""
    charges = last_lines(path / "ledger.jsonl")
    return bool(charges) and "units" in charges[-1] and charges[-1]["hash"] != (lines[-1]["ledger"] if lines else None)


def _certified(path: Path) -> float | None:
    prices = read_json(path / "certificate.json")["prices"]
    found = prices[0]["epsilon_pld"]
    return float(found) if found is not None and math.isfinite(float(found)) else None


_KINDS = {
    "reproduce.json": "reproduction",
    "results.json": "comparison",
    "compare.json": "comparison",
    "best.toml": "tuning",
}
_NOTHING = "no run is inside: no folder has a description.json"
_PUBLISHED = "published files of a run, not the run itself: `cloister verify` checks them"


def _kind(path: Path) -> str | None:
    return next((kind for name, kind in _KINDS.items() if (path / name).is_file()), None)


def _below(path: Path) -> list[Path]:
    """Folders that are not hidden; a draft of a run is."""
    try:
        with os.scandir(path) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir() and not one.name.startswith("."))
    except OSError:
        return []


def stamps(path: Path) -> Stamp:
    """What changes when a file of a run does."""
    return tuple(_stamp(path / name) for name in _FILES)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size, about.st_ino
