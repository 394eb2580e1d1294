"""The cache: the same data, decoded once, and never a half-written folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cloister.data import cache
from cloister.data.cache import cached
from cloister.data.formats import FORMATS
from cloister.data.raw import RawData
from cloister.errors import CloisterError, Corrupted

PLAY = "ANN:\n" + "abcdefghij" * 30 + "\n\nBartholomew:\n" + "klmnopqrst" * 20 + "\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tinyshakespeare.txt").write_text(PLAY)
    return tmp_path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Every call of the real reader."""
    calls: list[dict] = []
    original = FORMATS["shakespeare"]

    def read(root: Path, length: int = 80, stride: int | None = None) -> RawData:
        calls.append({"length": length, "stride": stride})
        return original.read(root, length, stride)

    monkeypatch.setitem(FORMATS, "shakespeare", replace(original, read=read))
    return calls


def same(a: RawData, b: RawData) -> bool:
    pairs = [
        (getattr(getattr(a, part), kind), getattr(getattr(b, part), kind))
        for part in ("train", "test")
        for kind in ("inputs", "labels", "owners")
    ]
    arrays = all((x is None and y is None) or (np.array_equal(x, y) and x.dtype == y.dtype) for x, y in pairs)
    return arrays and (a.classes, a.mean, a.std) == (b.classes, b.mean, b.std)


def folders(root: Path) -> list[Path]:
    return sorted((root / ".cloister").iterdir())


def test_the_second_load_maps_what_the_first_decoded(root, reads):
    plain = FORMATS["shakespeare"].read(root)
    reads.clear()
    first, second = cached("shakespeare", root), cached("shakespeare", root)
    assert len(reads) == 1
    assert same(first, plain)
    assert same(second, plain)
    assert isinstance(second.train.inputs, np.memmap)
    assert not second.train.inputs.flags.writeable
    assert second.train.owners.tolist()[-1] == "Bartholomew"
    assert [f.name.startswith("shakespeare-") for f in folders(root)] == [True]


def test_options_and_defaults(root, reads):
    cached("shakespeare", root)
    cached("shakespeare", root, length=80)
    assert len(reads) == 1, "a default is the same option, said aloud"
    assert cached("shakespeare", root, length=10).train.inputs.shape[1] == 10
    assert cached("shakespeare", root).train.inputs.shape[1] == 80
    assert len(reads) == 2
    with pytest.raises(CloisterError, match="found 'lenght': perhaps you mean \"length\""):
        cached("shakespeare", root, lenght=10)
    with pytest.raises(CloisterError, match="name of a data format"):
        cached("shakespear", root)


def test_a_changed_source_or_reader_is_decoded_anew(root, reads, monkeypatch):
    cached("shakespeare", root)
    source = root / "tinyshakespeare.txt"
    source.write_text(PLAY.replace("a", "b"))
    os.utime(source, ns=(1, 1))
    assert same(cached("shakespeare", root), FORMATS["shakespeare"].read(root))
    count = len(reads)
    monkeypatch.setitem(FORMATS, "shakespeare", replace(FORMATS["shakespeare"], version=99))
    cached("shakespeare", root)
    assert len(reads) == count + 1


def test_a_source_that_grew_is_decoded_anew_even_with_the_same_time(root, reads):
    source = root / "tinyshakespeare.txt"
    os.utime(source, ns=(1, 1))
    cached("shakespeare", root)
    source.write_text(PLAY + "\nCY:\n" + "uvwxyz" * 40 + "\n")
    os.utime(source, ns=(1, 1))
    assert "CY" in set(cached("shakespeare", root).train.owners.tolist())


def test_whatever_a_reader_trips_over_is_one_sentence(root, monkeypatch):
    def trip(root: Path) -> RawData:
        raise OverflowError("too large to convert")

    monkeypatch.setitem(FORMATS, "shakespeare", replace(FORMATS["shakespeare"], read=trip, files=lambda root: []))
    with pytest.raises(CloisterError, match=r"found damage \(too large to convert\).*--replace"):
        cached("shakespeare", root)
    assert not (root / ".cloister").exists()


def test_data_without_owners_and_with_an_empty_part(tmp_path, monkeypatch):
    (tmp_path / "tinyshakespeare.txt").write_text("ANN:\n" + "abc" * 30)
    original = FORMATS["shakespeare"]

    def read(root: Path) -> RawData:
        data = original.read(root)
        return RawData(replace(data.train, owners=None), replace(data.test, owners=None), 97, (0.5,), (0.25,))

    monkeypatch.setitem(FORMATS, "shakespeare", replace(original, read=read))
    for _ in range(2):
        data = cached("shakespeare", tmp_path)
        assert same(data, read(tmp_path))
    assert len(data.test) == 0
    assert isinstance(data.train.inputs, np.memmap)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("about.json", lambda path: path.write_text("{")),
        ("about.json", lambda path: path.write_text("[]")),
        ("about.json", lambda path: path.write_text(json.dumps({"classes": 3}))),
        ("about.json", lambda path: path.unlink()),
        ("train-inputs.npy", _truncate),
        ("train-inputs.npy", lambda path: path.write_bytes(b"")),
        ("train-inputs.npy", lambda path: path.unlink()),
        ("test-labels.npy", lambda path: np.save(path, np.zeros(1, np.int64))),
        ("train-owners.npy", lambda path: np.save(path, np.load(path).astype("U99"))),
    ],
)
def test_a_damaged_cache_is_rebuilt_silently(root, reads, file, harm):
    whole = cached("shakespeare", root)
    plain = FORMATS["shakespeare"].read(root)
    assert same(whole, plain)
    del whole
    [folder] = folders(root)
    harm(folder / file)
    reads.clear()
    assert same(cached("shakespeare", root), plain)
    assert same(cached("shakespeare", root), plain)
    assert len(reads) == 1
    assert folders(root) == [folder]


def test_a_bad_source_leaves_no_trace(root):
    (root / "tinyshakespeare.txt").write_text("no play")
    with pytest.raises(Corrupted):
        cached("shakespeare", root)
    assert not (root / ".cloister").exists()
    (root / "tinyshakespeare.txt").unlink()
    with pytest.raises(CloisterError, match="cloister data get shakespeare"):
        cached("shakespeare", root)
    assert not (root / ".cloister").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_while_writing_leaves_no_trace(root, monkeypatch, error):
    original, written = np.save, []

    def save(file, arr, allow_pickle):
        written.append(1)
        if len(written) == 3:
            raise error
        original(file, arr, allow_pickle=allow_pickle)

    monkeypatch.setattr(np, "save", save)
    if isinstance(error, OSError):
        assert same(cached("shakespeare", root), FORMATS["shakespeare"].read(root))
    else:
        with pytest.raises(KeyboardInterrupt):
            cached("shakespeare", root)
    assert len(written) == 3
    assert not (root / ".cloister").exists()


def test_where_nothing_can_be_written_nothing_is_kept(root, reads):
    (root / ".cloister").write_text("a file is in the way")
    assert same(cached("shakespeare", root), cached("shakespeare", root))
    assert len(reads) == 2


def test_whoever_is_second_leaves_the_first_ones_folder(root, monkeypatch):
    original, nested = cache._store, []

    def store(data: RawData, folder: Path) -> None:
        if not nested:  # another process finishes while this one is about to write
            nested.append(1)
            original(data, folder)
            nested.append((folder / "about.json").stat().st_ino)
        original(data, folder)

    monkeypatch.setattr(cache, "_store", store)
    data = cached("shakespeare", root)
    [folder] = folders(root)
    assert (folder / "about.json").stat().st_ino == nested[1]
    assert same(data, FORMATS["shakespeare"].read(root))


def test_processes_at_once_do_no_harm(root):
    program = (
        "import sys; from pathlib import Path; from cloister.data.cache import cached;"
        "d = cached('shakespeare', Path(sys.argv[1]), length=5, stride=1); print(int(d.train.inputs.sum()))"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {run.communicate()[0].strip() for run in runs}
    assert answers == {str(int(FORMATS["shakespeare"].read(root, 5, 1).train.inputs.sum()))}
    assert len(folders(root)) == 1
