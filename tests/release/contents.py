"""What a wheel and a source distribution hold, compared with what is under version control."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAPERS = "experiments/papers/"
"""What `cloister reproduce` reads; of a wheel it lies in share/."""


def tracked() -> set[str]:
    """The files under version control, as far as they are published: not those of the repository itself."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}
    return {name for name in names if not name.startswith(".")}


def expected_in_wheel(files: Iterable[str]) -> set[str]:
    """The package with all of its files, and the papers' tables."""
    listed = list(files)
    package = {name.removeprefix("src/") for name in listed if name.startswith("src/cloister/")}
    return package | {name for name in listed if name.startswith(PAPERS) and name.endswith(".toml")}


def in_wheel(path: Path) -> set[str]:
    """The same of a wheel: names as they are in the tree."""
    found = set()
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            top, _, rest = name.partition("/")
            if top.endswith(".dist-info"):
                continue
            papers = rest.removeprefix("data/share/cloister/papers/")
            found.add(f"{PAPERS}{papers}" if top.endswith(".data") and papers != rest else name)
    return found


GENERATED = ("PKG-INFO", "setup.cfg", "src/cloister.egg-info/")
"""What setuptools adds to a source distribution."""


def in_sdist(path: Path) -> set[str]:
    """The files of a source distribution without those that are made for it."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    return {name for name in names if not name.startswith(GENERATED)}


def differences(what: str, found: set[str], expected: set[str]) -> list[str]:
    """In words: what is missing, and what should not be there."""
    missing = [f"{what} lacks {name}" for name in sorted(expected - found)]
    return missing + [f"{what} has {name}, which is not under version control" for name in sorted(found - expected)]
