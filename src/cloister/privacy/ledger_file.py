"""Files of hashed lines: every line commits to the ones before. One writer, nothing torn, nothing altered unseen."""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
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


def expect_format(path: Path, wanted: str) -> None:
    """Refuse a file that another version wrote, before its lines are taken for damaged ones.

    A format is a name and a number; the name alone says that it is such a file.
    """
    name = re.escape(wanted.rsplit(" ", 1)[0]).encode()
    with path.open("rb") as file:
        match = re.search(rb'"format": ?"(' + name + rb' [^"]*)"', file.readline(10**6))
    found = match[1].decode(errors="replace") if match else wanted
    if found != wanted:
        raise CloisterError(
            f"Expected a ledger of the format {wanted!r} at {path}, found {found!r}: run it again, or use the "
            "version of cloister that wrote it."
        )


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


class Appending:
    """A file to which whole lines are appended, and synced while the writer goes on; nothing where path is None."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.descriptor: int | None = None
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._syncing: Future[None] | None = None
        self._failure: BaseException | None = None

    def append(self, lines: bytes) -> None:
        """Write lines and start to sync them; if that fails (a full disk, say), take back what was written."""
        if self.path is None:
            return
        if self.descriptor is None:
            raise CloisterError(f"Expected an open ledger at {self.path}, found it closed: open it again.")
        before = os.fstat(self.descriptor).st_size
        try:
            while lines:
                lines = lines[os.write(self.descriptor, lines) :]
            self._syncing = self._disk.submit(os.fsync, self.descriptor)
        except BaseException:
            os.ftruncate(self.descriptor, before)
            raise

    def sync(self) -> None:
        """Wait until every line is on the disk.

        Where a line did not get there, the disk is in a state that nobody knows, and so everything is refused from then
        on.
        """
        if self._syncing is not None:
            self._failure = self._syncing.exception()
            self._syncing = None
        self.expect_intact()

    def expect_intact(self) -> None:
        """Refuse to go on after a line that did not reach the disk."""
        if self._failure is not None:
            raise CloisterError(
                f"Expected the ledger at {self.path} to reach the disk, found {self._failure}: what its last line paid "
                "for was not released, so free space on the disk or fix it, then resume the run."
            ) from self._failure

    def close(self) -> None:
        """Sync, then release the lock."""
        try:
            self.sync()
        finally:
            self._disk.shutdown()
            if self.descriptor is not None:
                os.close(self.descriptor)
                self.descriptor = None
