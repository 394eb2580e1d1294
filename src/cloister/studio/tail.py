"""The lines of a file to which a run appends, and whether somebody is at work on a run."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted

_LAST = 1 << 16
"""So many bytes at the end of a file are read for its last lines."""
_RECENT = 60.0
"""Seconds within which a file was written, where the system does not tell who has it locked."""

Line = dict[str, Any]


@dataclass
class Tail:
    """Reads whole lines of JSON as they come. A torn last line is left until the rest of it is there."""

    path: Path
    _place: int = 0
    _file: int | None = None
    _rest: bytes = field(default=b"", repr=False)

    def read(self) -> tuple[bool, list[Line]]:
        """What is new since the last time, and whether it replaces all that was there before: a run that goes on after
        a crash drops lines and computes them again."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return False, []
        with file:
            about = os.fstat(file.fileno())
            anew = self._file is not None and (about.st_ino != self._file or about.st_size < self._place)
            if anew:
                self._place, self._rest = 0, b""
            self._file = about.st_ino
            file.seek(self._place)
            more = file.read()
        self._place += len(more)
        *whole, self._rest = (self._rest + more).split(b"\n")
        return anew, [_parsed(line, self.path) for line in whole]


def last_lines(path: Path) -> list[Line]:
    """The last whole lines of a file, read from its end."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _LAST))
        data = file.read()
    whole = data.split(b"\n")[:-1]
    return [_parsed(line, path) for line in (whole if size <= _LAST else whole[1:])]


def _parsed(line: bytes, path: Path) -> Line:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Corrupted(f"Expected a line for each round in {path}, found a damaged one: restore it from a backup.")
    return found


class Writers:
    """Whose ledgers are open for writing, as the system's list of locks tells. To try a lock would be to hold it for a
    moment, in which a run that begins would be refused."""

    def __init__(self, locks: Path = Path("/proc/locks")) -> None:
        self._locks = locks
        self._known: tuple[float, set[int] | None] = (-1.0, None)

    def at_work(self, run: Path) -> bool:
        """Whether a process is at work on a run, or, where nothing is known of locks, was so a minute ago."""
        try:
            about = (run / "ledger.jsonl").stat()
        except OSError:
            return False
        locked = self._locked()
        return time.time() - about.st_mtime < _RECENT if locked is None else about.st_ino in locked

    def _locked(self) -> set[int] | None:
        """Inodes, looked up at most twice a second."""
        when, found = self._known
        if time.monotonic() - when > 0.5 or when < 0:
            try:
                lines = [line.split() for line in self._locks.read_text().splitlines()]
                rows = [words for words in lines if "FLOCK" in words and "WRITE" in words]
                found = {int(words[words.index("WRITE") + 2].rsplit(":", 1)[1]) for words in rows}
            except (OSError, ValueError, IndexError):
                found = None
            self._known = time.monotonic(), found
        return found
