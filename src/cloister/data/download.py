"""Downloads that can be interrupted and trusted: resumed, checked, and put in place in one step or not at all."""

from __future__ import annotations

import errno
import http.client
import json
import os
import shutil
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from cloister.data.archives import compress, inside, unpack
from cloister.data.checksums import checksum, wrong_checksum
from cloister.data.registry import Entry, File, Member
from cloister.data.storage import present, readable
from cloister.errors import CloisterError, Corrupted

Opener = Callable[[Request], Any]
Report = Callable[[str, int, int | None], None]  # the file, bytes so far, bytes in all if known

_CHUNK = 1 << 18
_PATIENCE = 30.0  # seconds without a byte before a connection counts as dropped
_PASSING = {408, 425, 429, 500, 502, 503, 504}  # statuses of a server that may do better in a moment


class _Dropped(Exception):
    """The connection broke, or the answer was short: worth another attempt."""


def get(
    entry: Entry,
    root: Path,
    *,
    replace: bool = False,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    opener: Opener | None = None,
    attempts: int = 4,
    pause: float = 1.0,
) -> list[Path]:
    """Have the files of a data set in the data folder; returns the paths that were fetched.

    What is there and has the right checksum is left alone, and so is what no checksum is known for; what has a wrong
    one is refused. With `replace`, both of these are fetched again. `progress` None draws a bar if stderr is a
    terminal; `say` receives warnings (default: stderr).
    """
    if not entry.files:
        if present(entry, root) is True:
            return []
        raise CloisterError(f"Expected a data set with a download, found {entry.name!r}: {entry.note.rstrip('.')}.")
    say = say or _to_stderr
    fetched: list[Path] = []
    with _bar(progress) as report:
        for file in entry.files:
            with _said_in_a_sentence(root / file.path):
                wanted = _wanted(file, root, replace)
                if wanted:
                    _bring(file, root, wanted, _Source(file.url, opener or _open, attempts, pause, report), say)
            fetched += [root / piece.path for piece in wanted]
    return fetched


def _wanted(file: File, root: Path, replace: bool) -> list[Member]:
    """The pieces to put in place. What is there and cannot be checked is somebody's, and stays unless they say so."""
    wanted = []
    for piece in file.pieces:
        path = root / inside(piece.path)
        found = wrong_checksum(path, piece, file.compress) if path.exists() else None
        if found and not replace:
            raise Corrupted(
                f"Expected {checksum(piece)} of {path}, found {found}: move it away, or ask for it to be replaced."
            )
        if found or not path.exists() or (replace and checksum(piece) is None):
            wanted.append(piece)
    return wanted


def _bring(file: File, root: Path, wanted: list[Member], source: _Source, say: Callable[[str], None]) -> None:
    target = root / inside(file.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    resumed = source.fetch(part)
    whole = Member("", file.path, file.md5, file.sha256)
    found = wrong_checksum(part, whole)
    if found and resumed:  # the beginning may be of an older version: once more, from the start
        _discard(part)
        source.fetch(part)
        found = wrong_checksum(part, whole)
    if found:
        _discard(part)
        raise Corrupted(
            f"Expected {checksum(whole)} of {file.url}, found {found}: nothing was kept; try again, and if it repeats "
            "the file has changed at its source."
        )
    if checksum(whole) is None:
        say(f"warning: no checksum is known for {file.url}, so what was sent could not be verified.")
    try:
        if file.unpack:
            unpack(part, file, root, wanted)
        elif file.compress:
            compress(part, target)
        else:
            os.replace(part, target)
    finally:
        _discard(part)


class _Source:
    """Where one file comes from, and with how much patience."""

    def __init__(self, url: str, opener: Opener, attempts: int, pause: float, report: Report) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise CloisterError(f"Expected an address that begins with https:// or http://, found {url!r}: fix it.")
        self.url, self.opener, self.attempts, self.pause, self.report = url, opener, attempts, pause, report

    def fetch(self, part: Path) -> bool:
        """Fill the .part file, going on where it ends; whether its beginning is from an earlier attempt."""
        trouble = ""
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                return self._attempt(part)
            except _Dropped as error:
                trouble = str(error)
        raise CloisterError(
            f"Expected all of {self.url}, found {trouble} in {self.attempts} attempts: run it again, and it goes on "
            "from what has arrived."
        )

    def _attempt(self, part: Path) -> bool:
        about = _about(part)
        have = part.stat().st_size if part.exists() else 0
        if about.get("url") != self.url:  # what is there belongs to something else
            about, have = {}, 0
        if have and have == about.get("length"):
            return True
        headers = {"User-Agent": "cloister", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if about.get("version"):
                headers["If-Range"] = str(about["version"])
        with self._answer(Request(self.url, headers=headers), part) as answer:
            start, length = _extent(answer)
            fresh = {"url": self.url, "version": _version(answer), "length": length}
            if not start:  # before anything is said of it: a beginning must never pass for one of another version
                _discard(part)
            elif start != have or any(about[k] and fresh[k] and about[k] != fresh[k] for k in fresh):
                _discard(part)
                raise _Dropped("that the file changed at its source")
            if length is not None and shutil.disk_usage(part.parent).free < length - start:
                raise OSError(errno.ENOSPC, f"{readable(length - start)} are needed")
            _about_path(part).write_text(json.dumps(fresh))
            with part.open("r+b" if start else "wb") as out:
                out.seek(start)
                self._pour(answer, out, length)
                out.truncate()
                os.fsync(out.fileno())
                have = out.tell()
        if length is not None and have != length:
            raise _Dropped(f"the connection closed after {have:,} of {length:,} bytes")
        return bool(start)

    def _answer(self, request: Request, part: Path) -> Any:
        try:
            return self.opener(request)
        except HTTPError as error:
            error.close()
            if error.code == 416:  # the file is now shorter than what we have of it
                _discard(part)
                raise _Dropped("that the file changed at its source") from None
            if error.code in _PASSING:
                raise _Dropped(f"status {error.code} ({error.reason})") from None
            raise CloisterError(
                f"Expected a file at {self.url}, found status {error.code} ({error.reason}): it may have moved; look "
                "for it on the data set's page, and put it into the data folder by hand."
            ) from None
        except URLError as error:
            if isinstance(error.reason, (TimeoutError, ConnectionResetError, BrokenPipeError, ConnectionAbortedError)):
                raise _Dropped(f"the connection lost ({error.reason})") from None
            certificate = isinstance(error.reason, ssl.SSLCertVerificationError)
            raise CloisterError(
                f"Expected to reach {urlsplit(self.url).netloc}, found {error.reason}: "
                + (
                    "its certificate is not trusted here."
                    if certificate
                    else "check the network, a proxy or a firewall."
                )
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise _Dropped(f"the connection lost ({type(error).__name__})") from None

    def _pour(self, answer: Any, out: IO[bytes], length: int | None) -> None:
        name = PurePosixPath(unquote(urlsplit(self.url).path)).name
        while True:
            self.report(name, out.tell(), length)
            try:  # only what the network does is caught here: a full disk is another matter
                chunk = answer.read(_CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Dropped(f"the connection lost after {out.tell():,} bytes ({type(error).__name__})") from None
            if not chunk:
                return
            out.write(chunk)


def _extent(answer: Any) -> tuple[int, int | None]:
    """Where the answer begins in the file, and how long the file is (None if the server does not say)."""
    if answer.status == 206:
        bounds, _, total = (answer.headers.get("Content-Range") or "").removeprefix("bytes ").partition("/")
        first = bounds.partition("-")[0]
        if first.isdigit():
            return int(first), int(total) if total.isdigit() else None
        return -1, None  # nobody knows where it begins
    length = answer.headers.get("Content-Length") or ""
    return 0, int(length) if length.isdigit() else None


def _version(answer: Any) -> str | None:
    """What tells versions of a file apart, in the form that If-Range takes; a weak ETag is not good enough for it."""
    etag = answer.headers.get("ETag") or ""
    return etag if etag.startswith('"') else answer.headers.get("Last-Modified")


def _about_path(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _about(part: Path) -> dict[str, Any]:
    """What is known of a .part file: it is worth nothing without."""
    try:
        found = json.loads(_about_path(part).read_text())
        return {key: found[key] for key in ("url", "version", "length")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _about_path(part).unlink(missing_ok=True)


@contextmanager
def _said_in_a_sentence(target: Path) -> Iterator[None]:
    """What the disk refuses, said in one sentence. A full disk is not left full: what had arrived is removed."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _discard(target.with_name(target.name + ".part"))
            raise CloisterError(
                f"Expected room for {target.name} in {target.parent}, found the disk full ({error.strerror}): free "
                "some space, or set CLOISTER_DATA to a folder on another disk."
            ) from None
        raise CloisterError(
            f"Expected to read and write {target.name} in {target.parent}, found {error.strerror or error}: fix that, "
            "or set CLOISTER_DATA to another folder."
        ) from None


class _Redirects(HTTPRedirectHandler):
    """Redirections are followed, but never from https to something that can be tampered with on the way."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        kept = urlsplit(newurl).scheme == "https" or (req.type == "http" and urlsplit(newurl).scheme == "http")
        if not kept:
            raise HTTPError(req.full_url, code, f"it points to {newurl}, which is not safe", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(request: Request) -> Any:
    # Not urlopen: that would also open file:, ftp: and data: addresses.
    director = OpenerDirector()
    for handler in (
        ProxyHandler(),
        UnknownHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPDefaultErrorHandler(),
        _Redirects(),
        HTTPErrorProcessor(),
    ):
        director.add_handler(handler)
    return director.open(request, timeout=_PATIENCE)


@contextmanager
def _bar(progress: bool | None) -> Iterator[Report]:
    if not (sys.stderr.isatty() if progress is None else progress):
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True)) as bars:

        def report(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done, total=total)

        yield report


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
