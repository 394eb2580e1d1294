"""Faults at file operations: files are whole, ledgers show what left, runs resume. `make torture` has all of it."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from cloister.privacy import ledger_file
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.runs.files import new_folder, write_atomically
from torture.campaign import Tally
from torture.crashes import sweep
from torture.disk import Disk, Late, PowerFailed, failing

FOUND = list(product((True, False), repeat=2))


def every_crash(tmp_path: Path, work, prepared=lambda root: None):
    """Disks on which each of the operations of `work` was the last, as the power may leave them."""
    at = 1
    while True:
        root = tmp_path / str(at)
        root.mkdir()
        disk = Disk(root, at, "torn")
        try:
            with failing(disk):
                disk.fails_at = None
                prepared(root)
                disk.count, disk.fails_at = 0, at
                work(root)
        except PowerFailed:
            pass
        if disk.count < at:
            return
        for data, names in FOUND:
            yield disk.log[-1], disk.after(data, names)
        at += 1


def test_a_file_has_its_old_content_or_the_new_one_whenever_the_power_fails(tmp_path):
    old, new = b"old", b"new" * 1000
    contents = [
        tree["file"]
        for _, tree in every_crash(
            tmp_path,
            lambda root: write_atomically(root / "file", new),
            lambda root: write_atomically(root / "file", old),
        )
    ]
    assert set(contents) == {old, new}


def test_when_a_file_was_written_it_is_there_whatever_comes_then(tmp_path):
    with failing(Disk(tmp_path)) as disk:
        write_atomically(tmp_path / "file", b"new")
        for data, names in FOUND:
            assert disk.after(data, names) == {"file": b"new"}


@pytest.mark.parametrize("missing", ["data", "names"])
def test_what_is_not_synced_is_lost_here(tmp_path, missing):
    """So that the tests above can fail."""
    with failing(Disk(tmp_path)) as disk:
        with open(tmp_path / "file", "wb") as file:
            file.write(b"new")
            file.flush()
            if missing == "names":
                os.fsync(file.fileno())
        if missing == "data":
            descriptor = os.open(tmp_path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        assert disk.after(True, True) == {"file": b"new"}
        assert disk.after(False, False) == ({"file": b""} if missing == "data" else {})


def test_a_folder_is_laid_out_whole_or_not_at_all(tmp_path):
    def work(root: Path) -> None:
        with new_folder(root / "run") as draft:
            write_atomically(draft / "one", b"1")
            write_atomically(draft / "two", b"2")

    whole = {"run": None, "run/one": b"1", "run/two": b"2"}
    for _, tree in every_crash(tmp_path, work):
        found = {name: content for name, content in tree.items() if not name.startswith(".run")}
        assert found in ({}, whole)


def test_what_a_ledger_has_synced_it_shows_whenever_the_power_fails(tmp_path, monkeypatch):
    """The disk takes as long as it may."""
    monkeypatch.setattr(ledger_file, "ThreadPoolExecutor", Late)
    event, synced = PoissonGaussian(2.0, 0.3), []

    def work(root: Path) -> None:
        synced.clear()
        ledger = Ledger.create(root / "ledger.jsonl", "subject", {})
        os.fsync(descriptor := os.open(root, os.O_RDONLY))
        os.close(descriptor)
        for number in range(1, 4):
            ledger.charge("client", event, round=number, repeatable=True)
            ledger.sync()
            synced.append(number)

    for place, (_, tree) in enumerate(every_crash(tmp_path, work)):
        if not synced:
            continue
        path = tmp_path / f"found-{place}.jsonl"
        path.write_bytes(tree["ledger.jsonl"])
        ledger = Ledger.open(path, writable=False)
        assert all(ledger.has_paid("client", number) for number in synced)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind", "when"), [("dp_fedavg", "power", "late"), ("pfl secure", "torn", "early")])
def test_a_run_survives_a_fault_at_every_file_operation(tmp_path, name, kind, when):
    tally = Tally()
    sweep(name, kind, when, tmp_path, tally)
    assert tally.wrong == []
    assert tally.counts["operations"] > 50
    assert tally.counts["resumed"] > tally.counts["begun again"] > 0
