"""Tests on copies of the source: never on the working tree.

Every worker has a copy of its own, in which one bug at a time is planted and taken out again. What takes longest to
import (torch, the accountant, pytest) is imported once, here, and tests are run in forks of this process, which has
imported nothing of the library itself. Files that Python compiled are kept between trials, and a planted file has a
time of its own, so that nothing stale is run.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.planted import ROOT, Mutant

COPIED = ("src", "tests", "docs", "benchmarks", "examples", "experiments", "results", "pyproject.toml", "conftest.py")
COPIED += ("notebooks", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile")
WIDER = (
    *("tests/contract", "tests/privacy", "tests/round", "tests/random", "tests/mechanisms", "tests/transforms"),
    *("tests/server", "tests/client", "tests/per_sample", "tests/methods", "tests/runs", "tests/deploy"),
    *("tests/studies/test_private_tuning.py", "tests/engine/test_workers.py"),
)
"""Where a bug that the named tests let pass is looked for."""
_IMPORTED = (
    "pytest",
    "hypothesis",
    "numpy",
    "scipy.stats",
    "scipy.optimize",
    "torch",
    "torch.func",
    "safetensors.torch",
)
_IMPORTED += ("sklearn.datasets", "typer", "rich.console", "cryptography.fernet", "matplotlib.figure", "pandas", "h11")
_IMPORTED += ("dp_accounting", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp")
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


def import_once() -> None:
    """What tests import, but for the library."""
    for name in _IMPORTED:
        importlib.import_module(name)


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
        """Run tests in the copy, in a process of their own; with `first`, up to the first failure."""
        quiet = ["--tb=no", "-rfE", "-p", "no:cacheprovider", "--no-header", "-m", marks]
        began, log = time.perf_counter(), self.place / "pytest.log"
        child = os.fork()
        if not child:
            self._become_pytest([*quiet, *(["-x"] if first else []), *tests], log)
        status = _waited(child, timeout)
        seconds = time.perf_counter() - began
        if status is None:
            return Outcome(None, seconds, f"no answer after {timeout:g} s")
        said = log.read_text(errors="replace")
        failed = _FAILED.search(said)
        if status == 1 and failed:
            return Outcome(failed[1], seconds)
        return Outcome(None, seconds, f"pytest ended with {status}: {said[-600:].strip()}" if status else None)

    def _become_pytest(self, arguments: list[str], log: Path) -> None:
        """In a fork: the copy is what is imported, here and in processes that tests start."""
        status = 70
        try:
            os.setsid()
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(self.place)
            sys.path[:] = [str(self.place / "src"), *(one for one in sys.path if not is_ours(Path(one)))]
            os.environ |= {"PYTHONPATH": str(self.place / "src"), "OMP_NUM_THREADS": "1"}
            os.environ.setdefault("CLOISTER_TESTS_WITHIN", "90")  # also of the tests without a bug, which must pass
            sys.dont_write_bytecode = bool(self._planted)
            importlib.invalidate_caches()
            import pytest

            status = int(pytest.main(arguments))
            sys.stdout.flush()
        finally:
            os._exit(status)

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


def is_ours(path: Path) -> bool:
    """Whether the source that is copied is found there. Installed packages are not ours, wherever their environment is:
    `make` has it in a folder of the tree."""
    return path.is_relative_to(ROOT) and not path.is_relative_to(Path(sys.prefix))


def _waited(child: int, timeout: float) -> int | None:
    """The exit status of a fork; None where it had to be killed, with all that it had started."""
    until = time.monotonic() + timeout
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


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
