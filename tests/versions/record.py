"""docs/tested-versions.json: what was run with which versions, and how it ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "tested-versions.json"
_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?|deselected|xfailed)\b")


def dependencies() -> list[str]:
    """What pyproject.toml asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [re.split(r"[<>=!~ \[]", one, maxsplit=1)[0] for one in project["dependencies"]]


def versions(names: Sequence[str]) -> dict[str, str]:
    """Those that are installed here."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def run_tests(python: str, words: Sequence[str]) -> dict[str, Any]:
    """pytest in a process of its own, which says how many passed."""
    command = [python, "-m", "pytest", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        last = line if _COUNTS.search(line) and " in " in line else last
    counts = {kind: int(number) for number, kind in _COUNTS.findall(last)}
    return {"status": process.wait(), **counts}


def write(name: str, found: dict[str, Any]) -> None:
    """Put it in the place of what was found before."""
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    known[name] = found
    FILE.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", encoding="utf-8")
