"""Downloads against a server that can misbehave in every way a server does."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import os
import random
import shutil
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cloister.data import download
from cloister.data.registry import ENTRIES, Entry, File, Member
from cloister.errors import CloisterError, Corrupted

BODY = bytes(range(256)) * 4096  # 1 MiB
NOISE = random.Random(0).randbytes(50_000)  # which no format makes any shorter
MD5 = hashlib.md5(BODY).hexdigest()


@dataclass
class Site:
    """What a server has, and how it behaves."""

    bodies: dict[str, bytes] = field(default_factory=lambda: {"/file": BODY})
    ranges: bool = True  # answers Range
    cuts: list[int] = field(default_factory=list)  # each answer in turn stops after so many bytes
    always_cut: int | None = None
    etag: str | None = None
    honors_if_range: bool = True
    statuses: list[int] = field(default_factory=list)  # each answer in turn is nothing but this status
    redirects: dict[str, str] = field(default_factory=dict)
    lengths: bool = True
    bounds: bool = True  # says which part of the file an answer is
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append({"path": handler.path, **dict(handler.headers.items())})
        if self.statuses:
            handler.send_error(self.statuses.pop(0))
        elif handler.path in self.redirects:
            handler.send_response(302)
            handler.send_header("Location", self.redirects[handler.path])
            handler.end_headers()
        elif handler.path not in self.bodies:
            handler.send_error(404)
        else:
            self._send(handler, self.bodies[handler.path])

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        start = int((handler.headers.get("Range") or "bytes=0-")[6:-1]) if self.ranges else 0
        if self.honors_if_range and handler.headers.get("If-Range", self.etag) != self.etag:
            start = 0
        if start >= len(body):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start and self.bounds:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.lengths:
            handler.send_header("Content-Length", str(len(body) - start))
        handler.end_headers()
        cut = self.cuts.pop(0) if self.cuts else self.always_cut
        handler.wfile.write(body[start:] if cut is None else body[start : start + cut])


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.answer(self)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def one(file: File) -> Entry:
    return Entry("toy", "Toy", "toys", "1", "MIT", "nobody", (file,))


def plain(site: Site, **more: Any) -> Entry:
    return one(File(**{"url": f"{site.url}/file", "path": "toy/file.bin", "md5": MD5, **more}))


def get(entry: Entry, root: Path, **more: Any) -> list[Path]:
    return download.get(entry, root, **{"progress": False, "pause": 0.0, "attempts": 3, **more})


def everything(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_whole_download(site: Site, tmp_path: Path):
    assert get(plain(site), tmp_path) == [tmp_path / "toy/file.bin"]
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY
    assert everything(tmp_path) == {"toy/file.bin"}


def test_sha256_is_checked_too(site: Site, tmp_path: Path):
    get(plain(site, md5=None, sha256=hashlib.sha256(BODY).hexdigest()), tmp_path)
    with pytest.raises(Corrupted, match=r"^Expected sha256 0{64} of http://127.*, found [0-9a-f]{64}: .*\.$"):
        get(plain(site, path="other", md5=None, sha256="0" * 64), tmp_path)
    assert everything(tmp_path) == {"toy/file.bin"}


def test_what_is_there_and_right_is_not_fetched_again(site: Site, tmp_path: Path):
    get(plain(site), tmp_path)
    assert get(plain(site), tmp_path) == []
    assert len(site.asked) == 1


def test_what_is_there_and_wrong_is_replaced_only_on_demand(site: Site, tmp_path: Path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy/file.bin").write_bytes(b"mine")
    with pytest.raises(Corrupted, match=r"^Expected md5 .*file.bin, found .*: move it away"):
        get(plain(site), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == b"mine"
    assert not site.asked
    assert get(plain(site), tmp_path, replace=True) == [tmp_path / "toy/file.bin"]
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


@pytest.mark.parametrize("etag", [None, '"v1"'])
def test_a_cut_connection_is_resumed(site: Site, tmp_path: Path, etag: str | None):
    site.etag, site.cuts = etag, [300_000]
    get(plain(site), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY
    assert [asked.get("Range") for asked in site.asked] == [None, "bytes=300000-"]
    assert site.asked[1].get("If-Range") == etag
    assert everything(tmp_path) == {"toy/file.bin"}


def test_an_interrupted_download_is_resumed_by_the_next_call(site: Site, tmp_path: Path):
    site.etag, site.always_cut = '"v1"', 300_000
    with pytest.raises(CloisterError, match=r"found the connection closed after 300,000 of 1,048,576 bytes in 1 att"):
        get(plain(site), tmp_path, attempts=1)
    assert everything(tmp_path) == {"toy/file.bin.part", "toy/file.bin.part.json"}
    site.always_cut = None
    get(plain(site), tmp_path)
    assert site.asked[-1]["Range"] == "bytes=300000-"
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY
    assert everything(tmp_path) == {"toy/file.bin"}


def test_an_interrupt_by_the_user_is_resumable(site: Site, tmp_path: Path):
    site.etag = '"v1"'
    reads: list[int] = []

    def opener(request: Any) -> Any:
        answer = download._open(request)
        read = answer.read

        def interrupted(size: int) -> bytes:
            reads.append(size)
            if len(reads) == 3:
                raise KeyboardInterrupt
            return read(size)

        answer.read = interrupted
        return answer

    with pytest.raises(KeyboardInterrupt):
        get(plain(site), tmp_path, opener=opener)
    assert everything(tmp_path) == {"toy/file.bin.part", "toy/file.bin.part.json"}
    get(plain(site), tmp_path)
    assert site.asked[-1]["Range"] != "bytes=0-"
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_a_complete_part_is_not_fetched_again(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "wrong_checksum", killed)
        with pytest.raises(KeyboardInterrupt):
            get(plain(site), tmp_path)
    get(plain(site), tmp_path)
    assert len(site.asked) == 1
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_a_server_without_range_starts_over(site: Site, tmp_path: Path):
    site.ranges, site.cuts = False, [300_000]
    get(plain(site), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY
    assert len(site.asked) == 2


def test_an_answer_from_somewhere_in_the_file_is_not_used(site: Site, tmp_path: Path):
    site.bounds, site.cuts = False, [300_000]
    get(plain(site, md5=None), tmp_path, say=lambda text: None)
    assert [asked.get("Range") for asked in site.asked] == [None, "bytes=300000-", None]
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_a_beginning_of_another_version_is_gone_before_the_new_one_is_noted(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    site.etag, site.always_cut = '"old"', 300_000
    with pytest.raises(CloisterError, match="run it again"):
        get(plain(site), tmp_path, attempts=1)
    site.etag, site.always_cut = '"new"', None

    def killed(path: Path, text: str) -> None:
        assert everything(tmp_path) == set()
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        get(plain(site), tmp_path)


@pytest.mark.parametrize("honors", [True, False])
def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(site: Site, tmp_path: Path, honors: bool):
    site.etag, site.always_cut, site.honors_if_range = '"old"', 300_000, honors
    site.bodies["/file"] = b"old" * 400_000
    with pytest.raises(CloisterError, match="run it again"):
        get(plain(site), tmp_path, attempts=1)
    site.etag, site.always_cut, site.bodies["/file"] = '"new"', None, BODY
    get(plain(site), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_a_changed_file_is_noticed_by_its_length_or_at_last_by_its_checksum(site: Site, tmp_path: Path):
    for old in (b"old" * 400_000, b"o" * len(BODY), b"o" * 2 * len(BODY)):
        site.bodies["/file"], site.always_cut = old, len(old) - 10
        with pytest.raises(CloisterError, match="run it again"):
            get(plain(site), tmp_path, attempts=1)
        site.bodies["/file"], site.always_cut = BODY, None
        get(plain(site), tmp_path)
        assert (tmp_path / "toy/file.bin").read_bytes() == BODY
        shutil.rmtree(tmp_path / "toy")


def test_a_part_of_another_address_is_not_continued(site: Site, tmp_path: Path):
    site.bodies["/other"], site.always_cut = b"x" * 500_000, 1000
    with pytest.raises(CloisterError, match="run it again"):
        get(plain(site, url=f"{site.url}/other"), tmp_path, attempts=1)
    site.always_cut = None
    get(plain(site), tmp_path)
    assert "Range" not in site.asked[-1]
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_a_body_with_a_wrong_checksum_is_thrown_away(site: Site, tmp_path: Path):
    site.bodies["/file"] = b"?" + BODY[1:]
    with pytest.raises(Corrupted, match=r"^Expected md5 \w+ of http://127.*, found \w+: nothing was kept; .*\.$"):
        get(plain(site), tmp_path)
    assert everything(tmp_path) == set()


def test_a_body_that_is_always_short_is_one_sentence(site: Site, tmp_path: Path):
    site.always_cut, site.ranges = 1000, False
    with pytest.raises(CloisterError, match=r"closed after 1,000 of 1,048,576 bytes in 3 attempts: run it again"):
        get(plain(site), tmp_path)
    assert len(site.asked) == 3
    assert not (tmp_path / "toy/file.bin").exists()


def test_a_server_that_does_not_say_how_much_it_sends(site: Site, tmp_path: Path):
    site.lengths = False
    get(plain(site), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY


def test_not_found_is_one_sentence_and_not_tried_again(site: Site, tmp_path: Path):
    with pytest.raises(CloisterError, match=r"^Expected a file at .*/none, found status 404 \(Not Found\): .*\.$"):
        get(plain(site, url=f"{site.url}/none"), tmp_path)
    assert len(site.asked) == 1
    assert everything(tmp_path) == set()


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path):
    site.statuses = [503, 429]
    get(plain(site), tmp_path)
    assert len(site.asked) == 3
    site.statuses = [503] * 3
    with pytest.raises(CloisterError, match=r"found status 503 \(Service Unavailable\) in 3 attempts"):
        get(plain(site, path="other"), tmp_path)


def test_redirections_are_followed_but_only_over_http(site: Site, tmp_path: Path):
    site.redirects = {"/moved": "/file", "/trap": f"file://{tmp_path}/secret", "/ftp": "ftp://127.0.0.1/x"}
    (tmp_path / "secret").write_text("secret")
    get(plain(site, url=f"{site.url}/moved"), tmp_path)
    assert (tmp_path / "toy/file.bin").read_bytes() == BODY
    for path in ("/trap", "/ftp"):
        with pytest.raises(CloisterError, match="found status 302"):
            get(plain(site, url=site.url + path, path="other", md5=None), tmp_path)
    assert everything(tmp_path) == {"secret", "toy/file.bin"}


def test_no_redirection_from_https_to_http():
    from urllib.error import HTTPError
    from urllib.request import Request

    redirects, secure = download._Redirects(), Request("https://x/a")
    assert redirects.redirect_request(secure, io.BytesIO(), 302, "", {}, "https://y/a").full_url == "https://y/a"
    with pytest.raises(HTTPError, match="not safe"):
        redirects.redirect_request(secure, io.BytesIO(), 302, "", {}, "http://y/a")


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "data:,x", "/etc/passwd"])
def test_other_addresses_are_refused(url: str, tmp_path: Path):
    with pytest.raises(CloisterError, match=r"^Expected an address that begins with https:// or http://, found"):
        get(one(File(url, "x")), tmp_path)
    assert everything(tmp_path) == set()


def test_an_unreachable_host_is_one_sentence(site: Site, tmp_path: Path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # taken, but nobody listens
        port = held.getsockname()[1]
        with pytest.raises(
            CloisterError, match=rf"^Expected to reach 127.0.0.1:{port}, found .*refused: check the net"
        ):
            get(plain(site, url=f"http://127.0.0.1:{port}/file"), tmp_path)
    assert everything(tmp_path) == set()


def test_without_a_checksum_the_user_is_warned(site: Site, tmp_path: Path):
    given: list[str] = []
    entry = plain(site, md5=None)
    get(entry, tmp_path, say=given.append)
    assert given == [f"warning: no checksum is known for {site.url}/file, so what was sent could not be verified."]
    assert get(entry, tmp_path) == []
    assert get(entry, tmp_path, replace=True, say=given.append) == [tmp_path / "toy/file.bin"]


def test_a_full_disk_is_one_sentence_and_not_left_full(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CloisterError, match=r"^Expected room for file.bin in .*, found the disk full .*\.$"):
            get(plain(site), tmp_path)
    assert everything(tmp_path) == set()
    room = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    with pytest.raises(CloisterError, match=r"found the disk full \(1.0 MB are needed\): free some space"):
        get(plain(site), tmp_path)
    assert everything(tmp_path) == set()


def test_a_folder_that_cannot_be_written_is_one_sentence(site: Site, tmp_path: Path):
    (tmp_path / "toy").write_text("a file, not a folder")
    with pytest.raises(CloisterError, match=r"^Expected to read and write file.bin in .*/toy, found .*: fix that, or"):
        get(plain(site), tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(CloisterError, match=r"^Expected to read and write folder in .*, found Is a directory: "):
        get(plain(site, path="folder"), tmp_path)
    assert not site.asked


def test_compressed_after_download(site: Site, tmp_path: Path):
    entry = plain(site, path="text.gz", compress=True)
    get(entry, tmp_path)
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == BODY
    assert everything(tmp_path) == {"text.gz"}
    assert get(entry, tmp_path) == []
    for damaged in (b"not gzip", (tmp_path / "text.gz").read_bytes()[:-20]):
        (tmp_path / "text.gz").write_bytes(damaged)
        with pytest.raises(Corrupted, match="found something that is not gzip: move it away"):
            get(entry, tmp_path)


def zipped(*members: tuple[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo("in/link")
            info.create_system, info.external_attr = 3, 0o120777 << 16
            archive.writestr(info, link)
    return buffer.getvalue()


def tarred(*members: tuple[str, bytes], special: tarfile.TarInfo | None = None, mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if special:
            archive.addfile(special)
    return buffer.getvalue()


def special(kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo("in/special")
    info.type, info.linkname = kind, target
    return info


GOOD = (("in/a", b"alpha"), ("in/b", b"beta"), ("in/unwanted", b"gamma"))
MEMBERS = (Member("in/a", "deep/a", md5=hashlib.md5(b"alpha").hexdigest()), Member("in/b", "b"))


def archive(site: Site, name: str, content: bytes, members: tuple[Member, ...] = MEMBERS) -> Entry:
    site.bodies[f"/{name}"] = content
    md5 = hashlib.md5(content).hexdigest()
    return one(File(f"{site.url}/{name}", f"toy/{name}", md5=md5, unpack=True, members=members))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.zip", zipped(*GOOD)),
        ("x.tar.gz", tarred(*GOOD)),
        ("x.tar.bz2", tarred(*((f"./{name}", content) for name, content in GOOD), mode="w:bz2")),
    ],
    ids=["zip", "tar.gz", "tar.bz2"],
)
def test_archives_are_unpacked_and_removed(site: Site, tmp_path: Path, name: str, content: bytes):
    entry = archive(site, name, content)
    assert get(entry, tmp_path) == [tmp_path / "deep/a", tmp_path / "b"]
    assert everything(tmp_path) == {"deep/a", "b"}
    assert ((tmp_path / "deep/a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"alpha", b"beta")
    assert get(entry, tmp_path) == []
    (tmp_path / "deep/a").unlink()
    (tmp_path / "b").write_bytes(b"mine")  # it has no checksum: nobody can say that it is wrong
    assert get(entry, tmp_path) == [tmp_path / "deep/a"]
    assert (tmp_path / "b").read_bytes() == b"mine"


EVIL = {
    "zip slip": ("x.zip", zipped(*GOOD, ("../evil", b"evil"))),
    "zip slip inside": ("x.zip", zipped(*GOOD, ("in/../../evil", b"evil"))),
    "zip absolute": ("x.zip", zipped(*GOOD, ("/tmp/cloister-evil", b"evil"))),
    "zip drive": ("x.zip", zipped(*GOOD, ("C:evil", b"evil"))),
    "zip backslash": ("x.zip", zipped(*GOOD, ("..\\evil", b"evil"))),
    "zip link": ("x.zip", zipped(*GOOD, link="/etc/passwd")),
    "tar slip": ("x.tar.gz", tarred(*GOOD, ("../evil", b"evil"))),
    "tar absolute": ("x.tar.gz", tarred(*GOOD, ("/tmp/cloister-evil", b"evil"))),
    "tar symbolic link": ("x.tar.gz", tarred(*GOOD, special=special(tarfile.SYMTYPE, "/etc"))),
    "tar harmless link": ("x.tar.gz", tarred(*GOOD, special=special(tarfile.SYMTYPE, "a"))),
    "tar hard link": ("x.tar.gz", tarred(*GOOD, special=special(tarfile.LNKTYPE, "in/a"))),
    "tar device": ("x.tar.gz", tarred(*GOOD, special=special(tarfile.CHRTYPE))),
    "tar pipe": ("x.tar.gz", tarred(*GOOD, special=special(tarfile.FIFOTYPE))),
}


@pytest.mark.parametrize(("name", "content"), EVIL.values(), ids=EVIL)
def test_evil_archives_are_refused_whole(site: Site, tmp_path: Path, name: str, content: bytes):
    with pytest.raises(Corrupted, match=r"^Expected only (names that stay inside|files and folders).*: distrust .*\.$"):
        get(archive(site, name, content), tmp_path / "root")
    assert everything(tmp_path) == set()
    assert not Path("/tmp/cloister-evil").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.zip", b"this is no archive"),
        ("x.tar.gz", b"this is no archive"),
        ("x.zip", zipped(*GOOD).replace(b"alpha", b"alphA")),
        ("x.tar.gz", tarred(("in/a", NOISE), *GOOD)[:30_000]),
        ("x.tar.bz2", tarred(("in/a", NOISE), *GOOD, mode="w:bz2")[:30_000]),
        ("x.tar.bz2", tarred(*GOOD, mode="w:bz2")[:40] + b"\0" * 60),
    ],
    # Not the bytes themselves, which hold the time that they were made: all processes have to find the same tests.
    ids=["no zip", "no tar", "changed", "cut tar.gz", "cut tar.bz2", "zeros"],
)
def test_damaged_archives_are_one_sentence(site: Site, tmp_path: Path, name: str, content: bytes):
    with pytest.raises(Corrupted, match=r"^Expected .* to be an archive that can be read, found .*\.$"):
        get(archive(site, name, content), tmp_path)
    assert everything(tmp_path) == set()


def test_an_archive_with_other_content_is_one_sentence(site: Site, tmp_path: Path):
    with pytest.raises(Corrupted, match=r"^Expected 'in/c' in .*x.zip, found no such file: the archive has changed\.$"):
        get(archive(site, "x.zip", zipped(*GOOD), (*MEMBERS, Member("in/c", "c"))), tmp_path)
    with pytest.raises(Corrupted, match=r"^Expected md5 0{32} of 'in/b' in .*, found \w+: the archive has changed\.$"):
        get(archive(site, "x.zip", zipped(*GOOD), (MEMBERS[0], Member("in/b", "b", md5="0" * 32))), tmp_path)
    assert everything(tmp_path) == set()


def test_a_data_set_without_a_download_says_how_it_is_made(tmp_path: Path):
    assert get(ENTRIES["digits"], tmp_path) == []
    with pytest.raises(CloisterError, match=r"^Expected a data set with a download, found 'femnist': .*leaf.*[^.]\.$"):
        get(ENTRIES["femnist"], tmp_path)


def test_the_bar_is_drawn_on_stderr(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    get(plain(site), tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "file" in err


def test_without_a_terminal_nothing_is_drawn(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    get(plain(site), tmp_path, progress=None)
    assert capsys.readouterr() == ("", "")
