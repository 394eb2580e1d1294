"""A line is written before the work it pays for, and on the disk before anything leaves the round."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from cloister.errors import CloisterError
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Ledger

EVENT = PoissonGaussian(2.0, 0.3)
PATIENCE = 600  # seconds, for a machine that is busy with other things: what is waited for comes at once, or never


def make(path, rounds: int = 0) -> Ledger:
    ledger = Ledger.create(path, "subject", {})
    for number in range(1, rounds + 1):
        ledger.charge("client", EVENT, round=number, repeatable=True)
    return ledger


class Disk:
    """An fsync that takes as long as the test wants, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.free = threading.Event()
        self.synced = 0

    def fsync(self, descriptor: int) -> None:
        assert self.free.wait(timeout=PATIENCE)
        if self.fails:
            raise OSError(5, "Input/output error")
        self.synced += 1


@pytest.fixture
def slow_disk(monkeypatch):
    disk = Disk()
    yield lambda: monkeypatch.setattr("cloister.privacy.ledger.os.fsync", disk.fsync) or disk
    disk.free.set()


def test_charge_does_not_wait_for_the_disk_and_sync_does(tmp_path, slow_disk):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path)
    disk = slow_disk()
    ledger.charge("client", EVENT, round=1, repeatable=True)
    assert b'"round": 1' in path.read_bytes(), "written before anything is computed"
    assert disk.synced == 0
    synced = threading.Thread(target=ledger.sync)
    synced.start()
    synced.join(timeout=0.2)
    assert synced.is_alive(), "sync returned although the line was not on the disk"
    disk.free.set()
    synced.join(timeout=PATIENCE)
    assert not synced.is_alive()
    assert disk.synced == 1
    ledger.sync()
    assert disk.synced == 1, "nothing was written since"


@pytest.mark.parametrize(
    "wait",
    [
        lambda ledger: ledger.hash,
        lambda ledger: ledger.close(),
        lambda ledger: ledger.charge("client", EVENT, round=2, repeatable=True),
    ],
    ids=["hash", "close", "next charge"],
)
def test_whatever_relies_on_the_last_line_waits_for_it(tmp_path, slow_disk, wait):
    ledger = make(tmp_path / "ledger.jsonl")
    disk = slow_disk()
    ledger.charge("client", EVENT, round=1, repeatable=True)
    waiting = threading.Thread(target=wait, args=(ledger,))
    waiting.start()
    waiting.join(timeout=0.2)
    assert waiting.is_alive()
    assert disk.synced == 0
    disk.free.set()
    waiting.join(timeout=PATIENCE)
    assert not waiting.is_alive()
    assert disk.synced >= 1


def failing(path, patch) -> Ledger:
    """A ledger whose third line was written and did not reach the disk."""
    ledger, disk = make(path, rounds=1), Disk(fails=True)
    ledger.sync()
    disk.free.set()
    with patch.context() as during:
        during.setattr("cloister.privacy.ledger.os.fsync", disk.fsync)
        ledger.charge("client", EVENT, round=2, repeatable=True)
        with pytest.raises(
            CloisterError, match=r"ledger.jsonl to reach the disk, found .*Input/output.*resume"
        ) as found:
            ledger.sync()
    assert isinstance(found.value.__cause__, OSError)
    return ledger


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.sync(),
        lambda ledger: ledger.charge("client", EVENT, round=2, repeatable=True),
        lambda ledger: ledger.charge("client", EVENT, round=3, repeatable=False),
        lambda ledger: ledger.epsilon("client", 1e-3),
        lambda ledger: ledger.hash,
        lambda ledger: ledger.close(),
    ],
)
def test_a_ledger_that_did_not_reach_the_disk_refuses_everything(tmp_path, monkeypatch, call):
    path = tmp_path / "ledger.jsonl"
    ledger = failing(path, monkeypatch)
    before = path.read_bytes()
    for _ in range(2):  # the disk is fine again, but nobody knows what it holds
        with pytest.raises(CloisterError, match="to reach the disk"):
            call(ledger)
    assert path.read_bytes() == before


def test_after_a_failed_sync_a_resumed_run_finds_at_least_what_was_charged(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = failing(path, monkeypatch)
    with pytest.raises(CloisterError, match="to reach the disk"):
        ledger.close()
    again = Ledger.open(path)  # which syncs what it finds, and is free: the lock was released
    assert len(again.entries) == 2
    again.charge("client", EVENT, round=2, repeatable=True)
    assert len(again.entries) == 2
    again.charge("client", EVENT, round=3, repeatable=True)
    again.close()
    assert len(Ledger.open(path).entries) == 3


def test_a_sync_that_cannot_be_started_takes_the_line_back(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path, rounds=1)
    before = path.read_bytes()

    def nothing_left(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(ledger._file._disk, "submit", nothing_left)
        with pytest.raises(RuntimeError, match="new thread"):
            ledger.charge("client", EVENT, round=2, repeatable=True)
    assert path.read_bytes() == before
    ledger.charge("client", EVENT, round=2, repeatable=True)
    ledger.close()
    assert len(Ledger.open(path).entries) == 2


KILLED = """
import os, signal, sys, threading
from pathlib import Path
from cloister.privacy.events import PoissonGaussian
from cloister.privacy.ledger import Ledger

ledger = Ledger.create(Path(sys.argv[1]), "s", {})
ledger.charge("client", PoissonGaussian(2.0, 0.3), round=1, repeatable=False)
ledger.sync()
os.fsync = lambda descriptor: threading.Event().wait()
ledger.charge("client", PoissonGaussian(2.0, 0.3), round=2, repeatable=False)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_before_it_synced_has_paid(tmp_path):
    path = tmp_path / "ledger.jsonl"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode == -signal.SIGKILL
    assert [entry.round for entry in Ledger.open(path).entries] == [1, 2]


def test_without_a_file_there_is_nothing_to_wait_for(slow_disk):
    slow_disk()
    ledger = make(None, rounds=2)
    ledger.sync()
    assert ledger.hash == ledger.hashes[-1]
    ledger.close()


def test_what_is_opened_for_writing_is_written_again(tmp_path, monkeypatch):
    """After a failed sync the system may take bytes for written that are not: syncing again would prove nothing."""
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.create(path, "test", {})
    ledger.charge("client", EVENT, round=1, repeatable=True)
    ledger.close()
    before = path.read_bytes()
    path.write_bytes(before + b'{"torn')
    again = []
    plain = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (again.append(os.fstat(descriptor).st_size), plain(descriptor))[1]
    )
    Ledger.open(path).close()
    assert path.read_bytes() == before
    assert len(before) in again
