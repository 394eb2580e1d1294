"""Tests on copies of the source: never on the working tree.

Every slot has a copy of its own, in which one bug at a time is planted and taken out again. Files that Python compiled
are kept between trials, and a planted file has a time of its own, so that nothing stale is run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.planted import ROOT, Mutant

COPIED = ("src", "tests", "docs", "benchmarks", "examples", "experiments", "results", "pyproject.toml", "conftest.py")
WIDER = (
    *("tests/contract", "tests/privacy", "tests/round", "tests/random", "tests/mechanisms", "tests/transforms"),
    *("tests/server", "tests/client", "tests/per_sample", "tests/methods", "tests/runs", "tests/deploy"),
    *("tests/studies/test_private_tuning.py", "tests/engine/test_workers.py"),
)
"""Where a bug that the named tests let pass is looked for."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", re.MULTILINE)
_BEGINNING = 1_500_000_000


@dataclass(frozen=True)
class Outcome:
    """What tests said: which one failed first (None: all passed), or why nothing can be said."""

    failed: str | None
    seconds: float
    trouble: str | None = None


@dataclass(frozen=True)
class Killed:
    """What became of a mutant."""

    mutant: Mutant
    by: str | None
    seconds: float
    wider: bool = False
    trouble: str | None = None


class Copy:
    """A copy of the source with at most one bug in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._planted = 0
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, place / name)

    def test(self, tests: Sequence[str], marks: str = "not cuda", first: bool = True, timeout: float = 900) -> Outcome:
        """Run tests in the copy; with `first`, up to the first failure."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.place / "src"),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1" if self._planted else "",
        }
        quiet = ["--tb=no", "-rfE", "-p", "no:cacheprovider", "--no-header", "-m", marks]
        command = [sys.executable, "-m", "pytest", *quiet, *(["-x"] if first else []), *tests]
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=self.place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Outcome(None, timeout, f"no answer after {timeout:g} s")
        seconds = time.perf_counter() - began
        failed = _FAILED.search(said)
        if process.returncode == 1 and failed:
            return Outcome(failed[1], seconds)
        if process.returncode == 0:
            return Outcome(None, seconds)
        return Outcome(None, seconds, f"pytest ended with {process.returncode}: {said[-600:].strip()}")

    def plant(self, mutant: Mutant) -> None:
        """Put a bug into the copy."""
        self._write(mutant.path, mutant.applied((ROOT / mutant.path).read_text()))

    def restore(self, mutant: Mutant) -> None:
        """Take it out."""
        self._write(mutant.path, (ROOT / mutant.path).read_text())

    def _write(self, name: str, text: str) -> None:
        self._planted += 1
        path = self.place / name
        path.write_text(text)
        os.utime(path, (_BEGINNING + self._planted,) * 2)  # a time that no compiled file was made for


def trial(copy: Copy, mutant: Mutant, wide: bool = True) -> Killed:
    """Plant a bug, and find a test that fails: one of those that are named, or (`wide`) any other."""
    copy.plant(mutant)
    try:
        found = copy.test(mutant.tests)
        if found.failed is not None or found.trouble is not None or not wide:
            return Killed(mutant, found.failed, found.seconds, trouble=found.trouble)
        wider = copy.test(WIDER, "not slow and not cuda", timeout=3600)
        seconds = found.seconds + wider.seconds
    finally:
        copy.restore(mutant)
    if wider.failed is not None and copy.test([wider.failed]).failed is not None:
        return Killed(mutant, None, seconds, True, f"{wider.failed} fails without the bug as well")
    return Killed(mutant, wider.failed, seconds, True, wider.trouble)
