"""The facts about the data sets: complete, official, and in agreement with the readers and the files at hand."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from cloister.data.registry import ENTRIES, Entry, File, Member, entry
from cloister.data.storage import data_folder, describe, list_table, present
from cloister.errors import CloisterError

OFFICIAL = {
    "ossci-datasets.s3.amazonaws.com",
    "fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "biometrics.nist.gov",
    "www.cs.toronto.edu",
    "storage.googleapis.com",
    "archive.ics.uci.edu",
    "raw.githubusercontent.com",
}
PLAIN_HTTP = {"fashion-mnist.s3-website.eu-central-1.amazonaws.com"}  # it has no https; the checksum guards it
FILES = [file for one in ENTRIES.values() for file in one.files]
HERE = Path(__file__).parents[2] / ".data"


def test_names_are_those_of_the_readers_and_digits():
    formats = pytest.importorskip("cloister.data.formats")
    assert set(ENTRIES) == set(formats.FORMATS) | {"digits"}


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - {"digits"}))
def test_what_the_reader_opens_is_what_the_download_puts_there(name: str, tmp_path: Path):
    formats = pytest.importorskip("cloister.data.formats")
    known = {piece.path for file in ENTRIES[name].files for piece in file.pieces} | set(ENTRIES[name].by_hand)
    if name == "har":
        (tmp_path / "UCI HAR Dataset").mkdir()
    opened = {path.relative_to(tmp_path).as_posix() for path in formats.FORMATS[name].files(tmp_path)}
    assert opened <= known


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path)
def test_places_are_official_and_checksums_well_formed(file: File):
    address = urlsplit(file.url)
    assert address.hostname in OFFICIAL
    assert address.scheme == ("http" if address.hostname in PLAIN_HTTP else "https")
    assert file.md5 or file.sha256
    assert file.unpack == bool(file.members)
    for piece in (file, *file.members):
        assert not Path(piece.path).is_absolute()
        assert ".." not in Path(piece.path).parts
        assert piece.md5 is None or re.fullmatch("[0-9a-f]{32}", piece.md5)
        assert piece.sha256 is None or re.fullmatch("[0-9a-f]{64}", piece.sha256)


@pytest.mark.parametrize("one", ENTRIES.values(), ids=lambda one: one.name)
def test_an_entry_says_all_there_is_to_say(one: Entry):
    assert ENTRIES[one.name] is one
    assert all((one.title, one.what, one.samples, one.license, one.citation))
    assert one.files or one.note  # without a download, it is said where the data comes from


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "qmnist", "heart"])
def test_checksums_and_sizes_of_the_files_at_hand(name: str):
    if present(ENTRIES[name], HERE) is not True:
        pytest.skip(f"{name} is not in .data")
    for file in ENTRIES[name].files:
        content = (HERE / file.path).read_bytes()
        assert (hashlib.md5(content).hexdigest(), len(content)) == (file.md5, file.bytes)


def toy(**more: object) -> Entry:
    files = tuple(File(f"https://x/{name}", f"a/{name}") for name in ("one.gz", "two"))
    return Entry("toy", "Toy", "toys", "2", "MIT", "nobody", **{"files": files, **more})


def test_present_absent_and_partly(tmp_path: Path):
    assert present(toy(), tmp_path) is False
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "two").touch()
    assert present(toy(), tmp_path) == "partly"
    (tmp_path / "a" / "one").touch()  # unpacked, as torchvision leaves it
    assert present(toy(), tmp_path) is True


def test_present_by_hand(tmp_path: Path):
    alone = toy(files=(), by_hand=("b/*.json", "c/*.json"))
    assert present(alone, tmp_path) is False
    for folder in ("b", "c"):
        (tmp_path / folder).mkdir()
        assert present(alone, tmp_path) == (False if folder == "b" else "partly")
        (tmp_path / folder / "x.json").touch()
    assert present(alone, tmp_path) is True
    assert present(toy(by_hand=("b/*.json",)), tmp_path) is True
    assert present(ENTRIES["digits"], tmp_path) is True


def test_an_archive_is_present_by_its_members(tmp_path: Path):
    one = toy(files=(File("https://x/a.zip", "a.zip", unpack=True, members=(Member("in/x", "x"),)),))
    (tmp_path / "a.zip").touch()
    assert present(one, tmp_path) is False
    (tmp_path / "x").touch()
    assert present(one, tmp_path) is True


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/nun")
    monkeypatch.delenv("CLOISTER_DATA", raising=False)
    assert data_folder() == Path("/home/nun/.cache/cloister")
    monkeypatch.setenv("CLOISTER_DATA", "~/data")
    assert data_folder() == Path("/home/nun/data")
    monkeypatch.setenv("CLOISTER_DATA", "")
    assert data_folder() == Path("/home/nun/.cache/cloister")


def test_a_mistyped_name_is_helped():
    assert entry("mnist") is ENTRIES["mnist"]
    with pytest.raises(CloisterError, match="found 'cifar1': perhaps you mean \"cifar10\""):
        entry("cifar1")


def test_the_list_and_the_description(tmp_path: Path):
    (tmp_path / "tinyshakespeare.txt.gz").write_bytes(b"x" * 1500)
    console = Console(width=110)
    with console.capture() as shown:
        console.print(list_table(tmp_path))
    lines = shown.get().splitlines()
    assert len(lines) == 1 + len(ENTRIES)  # none is folded
    assert re.search(r"shakespeare .*yes, 1.5 kB +public domain", "\n".join(lines))
    for one in ENTRIES.values():
        text = describe(one, tmp_path)
        assert one.license in text
        assert one.citation in text
        assert one.note in text
        assert all(file.url in text for file in one.files)
