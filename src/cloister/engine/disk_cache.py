"""What was found fastest, kept on disk: such a choice is made by a clock, and a seed must give the same run again.

The noise of a run depends on its engine (runs that round differently must not share their noise). So that the same
command gives the same result on the same machine, what was chosen once is chosen again.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloister.errors import Note

SILENT_WAIT, LONGEST_WAIT = 5.0, 600.0
"""Seconds for which another process is waited for: without a word, and at all."""
_BETWEEN_TRIES = 0.1
_MOST = 1000
"""Choices that a file keeps; the oldest make room."""


def cache_folder() -> Path:
    """Where choices and compiled programs are kept between processes."""
    folder = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(folder) / "cloister"


class DiskCache:
    """Plain values by key, in one file. Where nothing can be written, for this process alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._in_this_process: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file that holds the values."""
        return cache_folder() / self.name

    def recall(self, key: str) -> Any:
        """What was remembered under this key; None if nothing was."""
        return self._in_this_process.get(key) or self._kept().get(key)

    def remember(self, key: str, value: Any) -> None:
        """Answer with this value from now on."""
        with self._lock, suppress(OSError, RuntimeError):  # RuntimeError: nobody has a home here
            self._in_this_process[key] = value
            newest = dict(list({**self._kept(), key: value}.items())[-_MOST:])
            draft = self.path.with_name(f"{self.name}.{os.getpid()}")
            draft.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(newest, indent=1) + "\n")
            os.replace(draft, self.path)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process is in here meanwhile, where the system and the disk know locks."""
        lock = self._lock_file()
        try:
            yield
        finally:
            if lock is not None:
                os.close(lock)

    def _lock_file(self) -> int | None:
        """A file that is locked as long as it is open."""
        with suppress(ImportError, OSError, RuntimeError):
            import fcntl

            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path.with_name(f"{self.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                self._wait_for(lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB))
            except OSError:
                os.close(file)
                raise
            return file
        return None

    def _wait_for(self, lock: Callable[[], None]) -> None:
        """Until it is ours. A stopped process keeps its lock for ever: whoever waits is told, and goes on at last."""
        for tries in range(round(LONGEST_WAIT / _BETWEEN_TRIES)):
            try:
                return lock()
            except BlockingIOError:
                if tries == round(SILENT_WAIT / _BETWEEN_TRIES):
                    warnings.warn(
                        "another process is choosing an engine, and is waited for; if it was stopped, end it, or name "
                        "an engine (engine = vectorized)",
                        Note,
                        stacklevel=2,
                    )
                time.sleep(_BETWEEN_TRIES)
        return lock()

    def _kept(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError, RuntimeError):  # no home, no file, or a damaged one: nothing is remembered
            return {}
        return found if isinstance(found, dict) else {}
