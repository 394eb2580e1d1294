"""Which engine was fastest, kept on disk: the choice is made by a clock, and a seed must give the same run again.

The noise of a run depends on its engine (runs that round differently must not share their noise). So that the same
command gives the same result on the same machine, what was chosen once is chosen again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

_IN_THIS_PROCESS: dict[str, dict[str, Any]] = {}
_MOST = 1000
"""Choices that are kept; the oldest make room."""


def cache_file() -> Path:
    """Where choices are kept between processes."""
    folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(folder) / "cloister" / "engines.json"


def recall(key: str) -> dict[str, Any] | None:
    """The engine that was chosen under this key, described, if one was."""
    return _IN_THIS_PROCESS.get(key) or _kept().get(key)


def remember(key: str, engine: dict[str, Any]) -> None:
    """Choose this engine under this key from now on. Where nothing can be written, for this process alone."""
    _IN_THIS_PROCESS[key] = engine
    path = cache_file()
    kept = {**_kept(), key: engine}
    newest = dict(list(kept.items())[-_MOST:])
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(newest, indent=1) + "\n")
        os.replace(draft, path)


def _kept() -> dict[str, dict[str, Any]]:
    try:
        found = json.loads(cache_file().read_text())
    except (OSError, ValueError, RuntimeError):  # no home, no file, or a damaged one: nothing is remembered
        return {}
    known = found.items() if isinstance(found, dict) else ()
    return {key: engine for key, engine in known if isinstance(engine, dict)}
