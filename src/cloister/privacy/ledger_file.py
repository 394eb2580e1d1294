"""The ledger as a file: sealed lines, one writer, and nothing torn."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, Corrupted


def seal(previous: str, content: dict[str, Any]) -> str:
    """What seals a line: a hash of it and of the seal before."""
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def verify(path: Path, lines: list[bytes]) -> tuple[list[str], list[dict[str, Any]]]:
    """Seals and contents of all lines; refused where one was altered."""
    seals: list[str] = []
    contents: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            found = content.pop("seal")
        except (ValueError, KeyError, TypeError, AttributeError):
            found, content = None, {}
        expected = seal(seals[-1] if seals else "", content)
        if found != expected:
            raise Corrupted(
                f"Expected line {number} of {path} to match its seal, found that it was altered: the ledger can "
                "no longer prove what was spent, so restore it from a backup."
            )
        seals.append(expected)
        contents.append(content)
    return seals, contents


def write_again(path: Path, descriptor: int) -> None:
    """Drop a torn last line and put every byte that stays on the disk, now.

    What an interrupted process wrote may not have got there, and after a failed sync the system may take it for
    written: only what is written again is sure to be synced.
    """
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    os.ftruncate(descriptor, len(whole))
    with path.open("r+b") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())


def open_locked(path: Path, flags: int = 0) -> int:
    """A descriptor for writing, which nobody else has."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o644)
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system; two writers would break the chain of seals, visibly
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CloisterError(
            f"Expected to be the only writer of {path}, found another process at work on this run: wait for it."
        ) from None
    return descriptor
