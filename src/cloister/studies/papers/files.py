"""A table or a figure of a paper as a TOML file (`experiments/papers/README.md` has the format)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import cloister
from cloister.errors import CloisterError, expect, nearest
from cloister.runs.config_file import load
from cloister.studies.papers.reported import Reported, reported_in

TABLES = {"paper", "seeds", "shared", "methods", "axes", "here", "scale", "choices", "reported"}
"""What a file consists of."""
ABOUT = {"key", "citation", "url", "item", "title", "metric", "runs", "order", "draws", "absent", "notes"}
"""What [paper] says."""
METRICS = {
    "final": "test accuracy of the last round's model",
    "best": "best test accuracy over the rounds (selected on test data)",
    "best_mean_client": "best mean over clients of their own test accuracy (selected on test data)",
}
"""What a paper's accuracy is, by the name under which `metric` of [paper] has it."""


@dataclass(frozen=True)
class PaperFile:
    """One table or figure: the runs it asks for, what the paper is silent or wrong about, and what it reports."""

    name: str
    tables: Mapping[str, Any]

    @property
    def about(self) -> Mapping[str, Any]:
        """Which paper, which table or figure, and what its numbers are."""
        found: Mapping[str, Any] = self.tables["paper"]
        return found

    @property
    def metric(self) -> str:
        """By which of METRICS the paper's numbers are to be compared with ours."""
        return str(self.about.get("metric", "final"))

    @property
    def order(self) -> list[str]:
        """The axes along which the paper compares: between rows that agree in all others."""
        return list(self.about.get("order", ["method"]))

    @property
    def seeds(self) -> list[int]:
        """With which seeds every cell is run."""
        return list(self.tables.get("seeds", [0]))

    @property
    def choices(self) -> list[dict[str, str]]:
        """What the paper is silent or wrong about: `about`, `chosen` and `why`."""
        return list(self.tables.get("choices", []))

    @cached_property
    def reported(self) -> list[Reported]:
        """The paper's numbers, cell by cell."""
        return reported_in(self.name, self.tables.get("reported", []))

    def table(self, *names: str) -> dict[str, Any]:
        """A table by its path; empty where there is none."""
        found: Any = self.tables
        for name in names:
            found = found.get(name, {})
        return dict(found)

    @property
    def title(self) -> str:
        """In one line."""
        return f"{self.about['item']}: {self.about['title']}"


def read(path: Path) -> PaperFile:
    """The file at a path, of which every table is known."""
    tables = load(path)
    _expect_names(path, "tables", tables, TABLES)
    for name in ("paper", "shared", "methods"):
        expect(isinstance(tables.get(name), Mapping), f"a table [{name}] in {path}", tables.get(name), "add it")
    file = PaperFile(path.stem, tables)
    _expect_names(path, "keys of [paper]", file.about, ABOUT)
    for name in ("citation", "item", "title"):
        expect(bool(file.about.get(name)), f"{name} in [paper] of {path}", file.about.get(name), "add it")
    if file.metric not in METRICS:
        raise CloisterError(f"Expected a metric in {path}, found {file.metric}: {nearest(file.metric, METRICS)}.")
    for choice in file.choices:
        expect(set(choice) == {"about", "chosen", "why"}, "about, chosen and why in [[choices]]", choice, "add them")
    return file


def _expect_names(path: Path, what: str, found: Mapping[str, Any], known: set[str]) -> None:
    for name in found:
        if name not in known:
            raise CloisterError(f"Expected known {what} in {path}, found {name!r}: {nearest(name, known)}.")


def find(name: str) -> Path:
    """The file of this name among those that come with the package, or the file at this path."""
    if name.endswith(".toml"):
        expect(Path(name).is_file(), "a file that is there", name, "check its name")
        return Path(name)
    known = shipped()
    if name not in known:
        raise CloisterError(f"Expected a table or figure by its name, found {name!r}: {nearest(name, known)}.")
    return known[name]


def shipped() -> dict[str, Path]:
    """The files that come with the package, by name: those of a checkout, or those that were installed with it."""
    beside = Path(cloister.__file__).resolve().parents[2] / "experiments" / "papers"
    return {path.stem: path for path in sorted(beside.glob("*.toml")) or _installed()}


def _installed() -> list[Path]:
    """Of a wheel, which keeps them outside of the package (pyproject.toml, data-files)."""
    try:
        everything = files("cloister") or []
    except PackageNotFoundError:
        return []
    found = [Path(str(file.locate())) for file in everything if file.match("cloister/papers/*.toml")]
    return sorted(path.resolve() for path in found)


def titles() -> dict[str, str]:
    """Every file in one line, by name."""
    found = {}
    for name, path in shipped().items():
        about = tomllib.loads(path.read_text())["paper"]
        found[name] = f"{about['item']}: {about['title']}"
    return found
