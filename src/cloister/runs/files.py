"""Files and folders that are there whole or not at all, whenever the power fails."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, Corrupted, expect
from cloister.privacy.description import plain

_DRAFT = ".cloister-draft"
"""What a folder's name ends with while it is being laid out."""


def read_bytes(path: Path) -> bytes:
    """What a file of a run holds. One that may not be read is not damaged, and one that is missing is."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise Corrupted(f"Expected {path}, found none: restore it from a backup.") from None
    except OSError as error:
        raise CloisterError(
            f"Expected to read {path}, found {error.strerror}: ask its owner for permission, or check the disk."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of a run holds."""
    data = read_bytes(path)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise Corrupted(f"Expected a readable {path.name} in {path.parent}, found it damaged: restore it.")


def write_json(path: Path, value: Any) -> None:
    """The value as a file that people can read."""
    write_atomically(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def write_atomically(path: Path, data: bytes, private: bool = False) -> None:
    """The file has either its old content or the new one, whenever the power fails; `private`: for its owner alone."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def expect_new_file(file: Path, suffixes: Sequence[str], force: bool) -> None:
    """Refuse a file that could not be written, or that is there, before any work is done for it."""
    wanted = f"a file that ends with {' or '.join(suffixes)}"
    expect(file.suffix in suffixes, wanted, str(file), "the ending says what is written")
    expect(not file.is_dir(), "the name of a file", str(file), "this is a folder")
    folder = file.parent
    expect(folder.is_dir(), "a file in a folder that exists", str(file), f"make {folder} first")
    if not os.access(folder, os.W_OK):
        raise CloisterError(f"Expected a folder that can be written to, found that {folder} cannot: choose another.")
    if file.exists() and not force:
        raise CloisterError(f"Expected a new file, found that {file} exists: choose another, or force it (--force).")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A place to lay a folder out, which becomes `path` when all is done, and vanishes when something goes wrong.

    It is locked as long as somebody is at work on it. What a process left behind that was killed is not, and is
    removed by whoever lays out the next folder beside it.
    """
    _make_parents(path.parent)
    _remove_abandoned(path.parent)
    draft, lock = _draft_beside(path)
    try:
        yield draft
        os.rename(draft, path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    finally:
        if lock is not None:
            os.close(lock)
    sync_folder(path.parent)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """The folder, made where there is none, with nobody else at work in it; others who ask meanwhile are refused."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = _locked(folder)
    except BlockingIOError:
        raise CloisterError(
            f"Expected to be the only one at work in {folder}, found another process: wait for it, or choose another "
            "folder."
        ) from None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _draft_beside(path: Path) -> tuple[Path, int | None]:
    """A locked folder; anew where somebody took it for abandoned before it was locked."""
    while True:
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_DRAFT}")
        draft.mkdir()
        with suppress(BlockingIOError, FileNotFoundError):
            lock = _locked(draft)
            if draft.is_dir():
                return draft, lock
            if lock is not None:
                os.close(lock)


def sync_file(path: Path) -> None:
    """Wait until what was appended to a file is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Onto the disk: which files the folder has."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_parents(folder: Path) -> None:
    """The folder and those above it, each of them entered on the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        sync_folder(one.parent)


def _remove_abandoned(folder: Path) -> None:
    for draft in folder.glob(f".*{_DRAFT}"):
        with suppress(OSError):
            lock = _locked(draft)
            if lock is not None:
                shutil.rmtree(draft, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock on a folder, as long as the descriptor is open; None where the system or the disk knows no locks.

    Raises `BlockingIOError` where somebody else has it.
    """
    try:
        import fcntl
    except ImportError:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor
