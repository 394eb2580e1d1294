"""A disk that counts what is done to it, fails at one operation, and loses what was not synced when the power fails.

Operations are those of Python's own functions (os.open, os.write, os.fsync, os.rename, ...) under one folder; what goes
through a file object is written by one that counts as well. What a sync has put on the disk is remembered apart from
what the system shows: contents of files by fsync of the file, names in a folder by fsync of the folder.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tree = dict[str, bytes | None]
"""Paths below a folder: the content of files, None for folders."""


class PowerFailed(BaseException):
    """The machine stops here: nothing after this line is done, whatever catches errors."""


@dataclass
class Disk:
    """Counts operations under a folder. At number `fails_at` one fails: as a full disk does, or as the end of all."""

    root: Path
    fails_at: int | None = None
    kind: str = "power"
    count: int = 0
    log: list[str] = field(default_factory=list)
    dead: bool = False
    _identity: dict[int, int] = field(default_factory=dict)  # inode -> number of the file, for inodes are used again
    _files: dict[int, bytes] = field(default_factory=dict)
    _folders: dict[int, dict[str, int]] = field(default_factory=dict)
    _kinds: dict[int, bool] = field(default_factory=dict)

    def operation(self, what: str, path: object, torn: Callable[[], None] | None = None) -> None:
        """One more; raises where this is the one. A write may be torn: half of it is done."""
        if self.dead:
            raise PowerFailed
        self.count += 1
        self.log.append(f"{what} {Path(str(path)).name}")
        if self.count != self.fails_at:
            return
        if self.kind == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if torn is not None and self.kind == "torn":
            torn()
        self.dead = True
        raise PowerFailed

    def covers(self, path: object) -> bool:
        """Whether a path is below the folder."""
        return isinstance(path, (str, os.PathLike)) and Path(os.path.abspath(path)).is_relative_to(self.root)

    def known(self, descriptor: int) -> bool:
        """Whether a descriptor is of something below the folder."""
        try:
            return Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(self.root)
        except OSError:
            return False

    # What is on the disk.

    def created(self, inode: int) -> None:
        """A file or folder that was not there before, perhaps with a number that another one had."""
        self._identity[inode] = len(self._kinds)
        self._kinds[self._identity[inode]] = True

    def _number(self, inode: int) -> int:
        if inode not in self._identity:
            self.created(inode)
        return self._identity[inode]

    def synced(self, descriptor: int) -> None:
        """What a descriptor is of is on the disk: its content, or its names."""
        found = os.fstat(descriptor)
        number = self._number(found.st_ino)
        path = f"/proc/self/fd/{descriptor}"
        if stat.S_ISDIR(found.st_mode):
            entries = list(os.scandir(path))
            self._folders[number] = {entry.name: self._number(entry.inode()) for entry in entries}
        else:
            with _REAL["open"](path, "rb") as file:
                self._files[number] = file.read()

    def after(self, data: bool, names: bool) -> Tree:
        """What is found when the power is back. `data`: contents that were not synced are there all the same; `names`:
        so are names. (A file whose name is there and whose content is not is empty, or what it was.)"""
        found: Tree = {}
        if names:
            for path in sorted(self.root.rglob("*")):
                number = self._number(path.lstat().st_ino)
                if path.is_dir():
                    found[str(path.relative_to(self.root))] = None
                else:
                    content = path.read_bytes() if data else self._files.get(number, b"")
                    found[str(path.relative_to(self.root))] = content
            return found
        now = {self._number(path.lstat().st_ino): path for path in self.root.rglob("*")}
        self._walk(self._number(self.root.stat().st_ino), "", found, now if data else {})
        return found

    def _walk(self, folder: int, at: str, found: Tree, now: dict[int, Path]) -> None:
        for name, number in self._folders.get(folder, {}).items():
            path = f"{at}{name}"
            if number in self._folders or (number in now and now[number].is_dir()):
                found[path] = None
                self._walk(number, f"{path}/", found, now)
            elif number in now and now[number].is_file():
                found[path] = _REAL["read"](now[number])
            else:
                found[path] = self._files.get(number, b"")


def lay_out(tree: Tree, root: Path) -> None:
    """Write a tree."""
    for name, content in tree.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


_REAL: dict[str, Any] = {"open": io.open, "read": Path.read_bytes}


class _CountedFile(io.FileIO):
    """A file whose writes are counted."""

    disk: Disk

    def write(self, data: Any) -> int:
        self.disk.operation("write", self.name, lambda: _half(super(_CountedFile, self).write, data))
        return super().write(data)


def _half(write: Callable[[bytes], int], data: Any) -> None:
    write(bytes(data)[: len(data) // 2])


@contextmanager
def failing(disk: Disk) -> Iterator[Disk]:
    """Python's operations go through the disk in here."""
    names = ("open", "write", "fsync", "replace", "rename", "unlink", "remove", "rmdir", "mkdir", "ftruncate")
    real = {name: getattr(os, name) for name in names}
    disk._folders.setdefault(disk._number(disk.root.stat().st_ino), {})

    def counted_open(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if not disk.covers(path) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return real["open"](path, flags, mode, **more)
        disk.operation("open", path)
        new = not os.path.lexists(path)
        found = real["open"](path, flags, mode, **more)
        if new:
            disk.created(os.fstat(found).st_ino)
        return found

    def counted_write(descriptor: int, data: bytes) -> int:
        if disk.known(descriptor):
            disk.operation("write", descriptor, lambda: _half(lambda part: real["write"](descriptor, part), data))
        return real["write"](descriptor, data)

    def counted_fsync(descriptor: int) -> None:
        if not disk.known(descriptor):
            return real["fsync"](descriptor)
        disk.operation("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
        return disk.synced(descriptor)

    def on_path(name: str) -> Any:
        def counted(path: Any, *rest: Any, **more: Any) -> Any:
            # shutil.rmtree names files by their folder's descriptor: these are not counted, for nobody relies on them
            if disk.covers(path) and not more.get("dir_fd"):
                disk.operation(name, path)
            elif disk.dead:
                raise PowerFailed
            found = real[name](path, *rest, **more)
            if name == "mkdir" and disk.covers(path):
                disk.created(os.lstat(path).st_ino)
            return found

        return counted

    def counted_truncate(descriptor: int, size: int) -> None:
        if disk.known(descriptor):
            disk.operation("truncate", descriptor)
        real["ftruncate"](descriptor, size)

    def counted_file(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        mine = disk.known(file) if isinstance(file, int) else disk.covers(file)
        if not mine or not set(mode) & set("wax+"):
            return _REAL["open"](file, mode, *rest, **more)
        if not isinstance(file, int):
            disk.operation("open", file)
            new = not os.path.lexists(file)
        raw = _CountedFile(file, mode.replace("b", "").replace("t", ""))
        raw.disk = disk
        if not isinstance(file, int) and new:
            disk.created(os.fstat(raw.fileno()).st_ino)
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, *rest[1:], **more)

    fakes = {"open": counted_open, "write": counted_write, "fsync": counted_fsync, "ftruncate": counted_truncate}
    fakes |= {name: on_path(name) for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir")}
    for name, fake in fakes.items():
        setattr(os, name, fake)
    io.open = builtins.open = counted_file  # type: Any
    try:
        yield disk
    finally:
        for name, function in real.items():
            setattr(os, name, function)
        io.open = builtins.open = _REAL["open"]


class Late:
    """In place of a thread: what is submitted is done when somebody waits for it, which is as late as it may be."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._waiting: list[_LateFuture] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> _LateFuture:
        found = _LateFuture(lambda: function(*arguments))
        self._waiting.append(found)
        return found

    def shutdown(self, wait: bool = True) -> None:
        for one in self._waiting:
            one.finish()


class Early(Late):
    """In place of a thread: what is submitted is done at once."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> _LateFuture:
        found = super().submit(function, *arguments)
        found.finish()
        return found


class _LateFuture(Future[Any]):
    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self._work = work

    def finish(self) -> None:
        if not self.done():
            try:
                self.set_result(self._work())
            except PowerFailed:
                raise
            except BaseException as error:
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        self.finish()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.finish()
        return super().exception(timeout)
