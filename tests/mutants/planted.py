"""The catalogue: bugs as data, and planting one in a text."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "planted"
SOURCE = "src/cloister"


class Stale(Exception):
    """The text that a mutant replaces is no longer there exactly once."""


@dataclass(frozen=True)
class Mutant:
    """One bug: in `file` (below src/cloister) the text `old` becomes `new`, and one of `tests` must fail."""

    subject: str
    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """Where the file lies, from the root of the repository."""
        return f"{SOURCE}/{self.file}"

    def applied(self, text: str) -> str:
        """The text with the bug in it."""
        found = text.count(self.old)
        if found != 1:
            raise Stale(
                f"Expected the text of the mutant {self.name} once in {self.path}, found it {found} times: write the "
                "mutant anew for the source as it is, or it plants nothing."
            )
        return text.replace(self.old, self.new)


@cache
def mutants() -> tuple[Mutant, ...]:
    """All of them, by subject."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        entries = tomllib.loads(path.read_text())["mutant"]
        found += [Mutant(path.stem, **{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    return tuple(found)
