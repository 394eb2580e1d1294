"""Files of hashed lines: every line commits to the ones before. One writer, nothing torn, nothing altered unseen."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from cloister.errors import CloisterError, Corrupted


class HashedLines(NamedTuple):
    """What a file of hashed lines holds."""

    hashes: list[str]
    contents: list[dict[str, Any]]
    lines: list[bytes]
    """As they are in the file, without newlines; what was torn is left out."""

    @property
    def data(self) -> bytes:
        """The lines, each with its newline."""
        return b"".join(line + b"\n" for line in self.lines)


def line_hash(previous: str, content: dict[str, Any]) -> str:
    """What hashes a line: a hash of it and of the hash before."""
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def hashed(previous: str, content: dict[str, Any]) -> tuple[bytes, str]:
    """A line with its hash, ready to be written, and the hash."""
    found = line_hash(previous, content)
    return (json.dumps({**content, "hash": found}, sort_keys=True) + "\n").encode(), found


def read_hashed(path: Path, what: str) -> HashedLines:
    """All lines of a file, verified; refused where one was altered.

    The last one may lack its newline. If it is whole all the same, it counts; if it is not, whoever wrote it was
    interrupted, and it is left out. `what` says what is lost where a line was altered.
    """
    return verified(path.read_bytes(), path, what)


def verified(data: bytes, path: Path, what: str) -> HashedLines:
    """As `read_hashed`, of bytes that were read from the path."""
    *whole, tail = data.split(b"\n")
    found = HashedLines([], [], [])
    for number, line in enumerate(whole, start=1):
        if not _append(found, line):
            raise Corrupted(
                f"Expected line {number} of {path} to match its hash, found that it was altered: {what}, so restore it "
                "from a backup."
            )
    _append(found, tail)
    return found


def _append(known: HashedLines, line: bytes) -> bool:
    """Add a line to those before; False, and nothing added, where its hash is not right."""
    try:
        content = json.loads(line)
        claimed = content.pop("hash")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    expected = line_hash(known.hashes[-1] if known.hashes else "", content)
    if claimed == expected:
        known.hashes.append(expected)
        known.contents.append(content)
        known.lines.append(line)
    return bool(claimed == expected)


def write_again(path: Path, descriptor: int, whole: bytes) -> None:
    """Leave nothing but these bytes, with which the file begins, and put every one of them on the disk, now.

    What an interrupted process wrote may not have got there, and after a failed sync the system may take it for
    written: only what is written again is sure to be synced.
    """
    os.ftruncate(descriptor, min(len(whole), os.fstat(descriptor).st_size))
    with path.open("r+b") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())


def open_locked(path: Path, flags: int = 0) -> int:
    """A descriptor for writing, which nobody else has."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o644)
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system; two writers would break the chain of hashes, visibly
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CloisterError(
            f"Expected to be the only writer of {path}, found another process at work on this run: wait for it."
        ) from None
    except OSError:  # a disk that knows no locks: the same holds
        pass
    return descriptor
