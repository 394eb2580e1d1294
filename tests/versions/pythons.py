"""Other Pythons: everything that needs no torch, which is large and often there for one of them alone.

That is the accounting (`cloister.privacy`), the papers' bounds (`cloister.theory`), and the commands that import no
torch. All other modules are compiled, which finds what a Python cannot read.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from versions.record import ROOT, dependencies, run_tests, write

WANTED = ("3.12", "3.13")
_TORCH = ("torch", "torchmetrics")
COMMANDS = (
    *("--version", "--help", "methods", "methods pfl", "keys pfl", "run --help", "data list", "completion bash"),
    "completion fish -- run method=pfl lo",
)
_WITHOUT = ("conftest", "torch", "import cloister as cl", "from trained", "methods")
"""Whoever speaks of these needs torch."""


def light_tests() -> list[str]:
    """Test files that import no torch, by what they say."""
    files = [path for folder in ("privacy", "theory") for path in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    return [str(path.relative_to(ROOT)) for path in files if not any(word in path.read_text() for word in _WITHOUT)]


def interpreter(name: str) -> str | None:
    """Of that version: on the PATH, or among those that pyenv has installed."""
    below = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = [shutil.which(f"python{name}"), *sorted(glob.glob(f"{below}/versions/{name}.*/bin/python"), reverse=True)]
    for one in found:
        answers = one and subprocess.run([one, "-c", "import venv"], capture_output=True, check=False).returncode == 0
        if answers:
            return one
    return None


def main() -> int:
    """Every one that is there; what is not is written down as well."""
    worst = 0
    for name in WANTED:
        python = interpreter(name)
        if python is None:
            sys.stdout.write(f"Python {name} is not here\n")
            write(f"python {name}", {"command": "make test-pythons", "python": None})
            continue
        found = _try(name, python)
        write(f"python {name}", found)
        worst = max(worst, int(found["found"]["status"]), int(bool(found["commands failed"])))
    return worst


def _try(name: str, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="cloister-python-") as place:
        own = f"{place}/environment/bin/python"
        subprocess.run([python, "-m", "venv", f"{place}/environment"], check=True)
        needed = [one for one in dependencies() if one not in _TORCH]
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "dp-accounting>=0.6,<0.7", *needed, "pytest", "hypothesis", "setuptools>=77"], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", _copy(Path(place))], check=True)
        subprocess.run([own, "-m", "compileall", "-q", str(ROOT / "src")], check=True, env=_environment(place))
        found = run_tests(own, ["-q", "--noconftest", "-m", "not slow and not cuda", *light_tests()])
        failed = [words for words in COMMANDS if _fails(own, words, place)]
        return {
            "command": "make test-pythons",
            "python": _ask(own, "import platform; print(platform.python_version())"),
            "versions": json.loads(_ask(own, _VERSIONS.format(names=dependencies()))),
            "tests": light_tests(),
            "found": found,
            "commands": list(COMMANDS),
            "commands failed": failed,
        }


_VERSIONS = """
import importlib.metadata as m, json
def one(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return "not installed"
print(json.dumps({{name: one(name) for name in {names}}}))
"""


def _copy(place: Path) -> str:
    """The sources without what is built there, so that building leaves nothing behind in the checkout."""
    copy = place / "sources"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "experiments"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return str(copy)


def _environment(place: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPYCACHEPREFIX": f"{place}/compiled"}


def _ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _fails(python: str, words: str, place: str) -> bool:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, "-m", "cloister", *words.split()]
    done = subprocess.run(command, cwd=place, env=own, capture_output=True, text=True, check=False)
    sys.stdout.write(f"  cloister {words}: status {done.returncode}\n{done.stderr[-500:] if done.returncode else ''}")
    return done.returncode != 0
