from __future__ import annotations

import json
import math
import os

import pytest

from cloister.errors import BudgetExceededError, CloisterError, Corrupted, UnsupportedMechanismError
from cloister.privacy.accountant import epsilon
from cloister.privacy.budgets import Budget
from cloister.privacy.events import (
    FixedSizeGaussian,
    Gaussian,
    NonPrivate,
    PoissonGaussian,
    Unsupported,
    from_json,
    to_json,
)
from cloister.privacy.ledger import Ledger
from cloister.privacy.ledger_file import hashed

EVENT = PoissonGaussian(2.0, 0.3)


def spent(rounds: int) -> float:
    return epsilon(EVENT, rounds, 1e-3)


def make(path, budget: float | None = None, rounds: int = 0) -> Ledger:
    ledger = Ledger.create(path, "subject", {} if budget is None else {"client": Budget(budget, 1e-3)})
    for number in range(1, rounds + 1):
        ledger.charge("client", EVENT, round=number, repeatable=True)
    return ledger


def test_what_is_charged_can_be_read_again(tmp_path):
    path = tmp_path / "ledger.jsonl"
    before = make(path, budget=5.0, rounds=3)
    before.close()
    after = Ledger.open(path)
    assert after.entries == before.entries
    assert after.hashes == before.hashes
    assert after.budgets == {"client": Budget(5.0, 1e-3)}
    assert after.epsilon("client", 1e-3) == pytest.approx(spent(3), rel=1e-6)
    assert after.epsilon("nobody", 1e-3) == 0.0


def test_the_line_is_written_when_charge_returns(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path)
    for number in range(1, 4):
        ledger.charge("client", EVENT, round=number, repeatable=True)
        lines = path.read_bytes().split(b"\n")
        assert json.loads(lines[number])["round"] == number
        assert lines[-1] == b""


def test_every_charge_is_synced_to_the_disk(tmp_path, monkeypatch):
    ledger = make(tmp_path / "ledger.jsonl")
    synced = []
    monkeypatch.setattr(
        "cloister.privacy.ledger.os.fsync", lambda descriptor: synced.append((tmp_path / "ledger.jsonl").read_bytes())
    )
    ledger.charge("client", EVENT, round=1, repeatable=True)
    ledger.sync()
    assert len(synced) == 1
    assert b'"round": 1' in synced[0], "the line was written before it was synced"


def test_a_charge_beyond_the_budget_is_refused_and_leaves_no_trace(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path, budget=spent(4) + 1e-9, rounds=4)
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match="after round 5"):
        ledger.charge("client", EVENT, round=5, repeatable=True)
    assert path.read_bytes() == before
    assert ledger.epsilon("client", 1e-3) == pytest.approx(spent(4), rel=1e-6)


def test_budgets_are_per_unit():
    ledger = Ledger.create(None, "s", {"a": Budget(spent(1) + 1e-9, 1e-3), "b": Budget(spent(3), 1e-3)})
    ledger.charge("a", EVENT, round=1, repeatable=True)
    ledger.charge("b", EVENT, round=1, repeatable=True)
    with pytest.raises(BudgetExceededError, match="for a"):
        ledger.charge("a", EVENT, round=2, repeatable=True)
    ledger.charge("b", EVENT, round=2, repeatable=True)


def test_a_non_private_release_exceeds_every_budget():
    ledger = Ledger.create(None, "s", {"client": Budget(1000.0, 1e-3)})
    with pytest.raises(BudgetExceededError):
        ledger.charge("client", NonPrivate(), round=1, repeatable=True)
    free = Ledger.create(None, "s", {})
    free.charge("client", NonPrivate(), round=1, repeatable=True)
    assert free.epsilon("client", 1e-3) == math.inf


def test_what_cannot_be_priced_is_refused_and_leaves_no_trace(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path)
    before = path.read_bytes()
    with pytest.raises(UnsupportedMechanismError):
        ledger.charge("client", Unsupported("cohorts in alphabetical order"), round=1, repeatable=True)
    assert path.read_bytes() == before
    assert not ledger.entries


def test_a_repeated_seeded_round_is_paid_for_once_and_a_secure_one_twice(tmp_path):
    ledger = make(tmp_path / "ledger.jsonl", rounds=2)
    ledger.charge("client", EVENT, round=2, repeatable=True)
    assert len(ledger.entries) == 2
    ledger.charge("client", EVENT, round=2, repeatable=False)
    assert len(ledger.entries) == 3
    assert ledger.epsilon("client", 1e-3) == pytest.approx(spent(3), rel=1e-6)


def test_a_repeated_round_with_other_noise_is_refused(tmp_path):
    ledger = make(tmp_path / "ledger.jsonl", rounds=2)
    with pytest.raises(Corrupted, match="configuration changed"):
        ledger.charge("client", PoissonGaussian(1.0, 0.3), round=2, repeatable=True)


def test_a_last_line_that_lacks_its_newline_alone_counts(tmp_path):
    """It may have paid for something: whoever dropped it would spend less than was spent."""
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=3).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert len(Ledger.open(path, writable=False).entries) == 3
    ledger = Ledger.open(path)
    ledger.charge("client", EVENT, round=4, repeatable=True)
    ledger.close()
    assert path.read_bytes().startswith(whole)
    assert len(Ledger.open(path).entries) == 4


@pytest.mark.parametrize("change", [{"event": 3}, {"round": 1}, {"units": 5}, {"count": "many"}], ids=str)
def test_lines_that_make_no_sense_are_refused_even_with_the_right_hash(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    make(path).close()
    header = json.loads(path.read_bytes())
    content = {
        "units": ["client"],
        "round": 1,
        "what": "update",
        "count": 1,
        "event": {"kind": "non_private"},
        **change,
    }
    if change == {"round": 1}:
        del content["what"]
    path.write_bytes(path.read_bytes() + hashed(header["hash"], content)[0])
    with pytest.raises(Corrupted, match="lines of a ledger"):
        Ledger.open(path)


def test_a_ledger_of_an_older_format_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "ledger.jsonl"
    line = hashed("", {"format": "cloister ledger 2", "subject": "abc", "budgets": {}})[0]
    path.write_bytes(line.replace(b'"hash"', b'"seal"'))  # as lines were called then
    with pytest.raises(CloisterError, match="found 'cloister ledger 2': run it again, or use the version") as refused:
        Ledger.open(path)
    assert not isinstance(refused.value, Corrupted)
    path.write_bytes(hashed("", {"format": "something else"})[0])
    with pytest.raises(Corrupted, match="restore it from a backup"):
        Ledger.open(path)


@pytest.mark.parametrize("cut", range(2, 60, 7))
def test_a_torn_last_line_paid_for_nothing(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=3).close()
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    ledger = Ledger.open(path)
    assert len(ledger.entries) == 2
    ledger.charge("client", EVENT, round=3, repeatable=True)
    assert path.read_bytes() == whole


def test_any_flipped_byte_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=3).close()
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 11):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(bytes(damaged))
        with pytest.raises(CloisterError):
            Ledger.open(path, writable=False)


def test_a_missing_line_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=4).close()
    lines = path.read_bytes().split(b"\n")
    for gone in range(len(lines) - 2):
        path.write_bytes(b"\n".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(Corrupted):
            Ledger.open(path, writable=False)


def test_lines_cut_off_the_end_are_noticed_by_whoever_remembers_the_hash(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path, rounds=4)
    ledger.close()
    path.write_bytes(b"\n".join(path.read_bytes().split(b"\n")[:3]) + b"\n")
    short = Ledger.open(path)
    short.expect_continues(ledger.hashes[2])
    with pytest.raises(Corrupted, match="lines were removed"):
        short.expect_continues(ledger.hash)


def test_two_writers_are_one_too_many(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path, rounds=1)
    with pytest.raises(CloisterError, match="only writer"):
        Ledger.open(path)
    Ledger.open(path, writable=False)
    ledger.close()
    Ledger.open(path).close()


def test_nothing_is_charged_to_a_closed_ledger(tmp_path):
    ledger = make(tmp_path / "ledger.jsonl")
    ledger.close()
    with pytest.raises(CloisterError, match="closed"):
        ledger.charge("client", EVENT, round=1, repeatable=True)
    assert not ledger.entries


def test_a_full_disk_stops_the_charge(tmp_path, monkeypatch):
    ledger = make(tmp_path / "ledger.jsonl")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cloister.privacy.ledger.os.write", full)
    with pytest.raises(OSError, match="No space"):
        ledger.charge("client", EVENT, round=1, repeatable=True)
    assert not ledger.entries


@pytest.mark.parametrize(
    "event", [EVENT, Gaussian(1.5), FixedSizeGaussian(0.5, 3, 9), NonPrivate(), Unsupported("why")]
)
def test_events_survive_json(event):
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize("fields", [{}, {"kind": "magic"}])
def test_unknown_events_are_refused(fields):
    with pytest.raises(CloisterError, match="event of kind"):
        from_json(fields)


@pytest.mark.parametrize(
    "make_event",
    [
        lambda: Gaussian(-1.0),
        lambda: Gaussian(math.nan),
        lambda: PoissonGaussian(1.0, 0.0),
        lambda: PoissonGaussian(1.0, 1.5),
        lambda: FixedSizeGaussian(1.0, 0, 5),
        lambda: FixedSizeGaussian(1.0, 6, 5),
    ],
)
def test_impossible_events_are_refused(make_event):
    with pytest.raises(CloisterError, match="Expected"):
        make_event()


def test_a_failed_write_is_taken_back_and_the_ledger_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = make(path, rounds=1)
    before, write = path.read_bytes(), os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:40])

    with monkeypatch.context() as patch:
        patch.setattr("cloister.privacy.ledger.os.write", half)
        with pytest.raises(OSError, match="No space"):
            ledger.charge("client", EVENT, round=2, repeatable=True)
    assert path.read_bytes() == before
    ledger.charge("client", EVENT, round=2, repeatable=True)
    ledger.close()
    assert len(Ledger.open(path).entries) == 2


def test_a_ledger_that_cannot_be_read_is_not_left_locked(tmp_path):
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=2).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"2.0", b"9.0", 1))
    for _ in range(2):
        with pytest.raises(Corrupted, match="altered"):
            Ledger.open(path)
    path.write_bytes(whole)
    Ledger.open(path).close()


@pytest.mark.parametrize("count", [0, -1, -9])
def test_nothing_is_given_back(count):
    """Found in review: ten releases and then minus nine cost what one costs."""
    ledger = Ledger.create(None, "test", {})
    ledger.charge("client", Gaussian(1.0), round=1, repeatable=True, count=10)
    with pytest.raises(CloisterError, match="nothing is given back"):
        ledger.charge("client", Gaussian(1.0), round=2, repeatable=True, count=count)


def test_a_line_that_gives_back_is_no_line_of_a_ledger(tmp_path):
    """Written by somebody who knows how lines are hashed."""
    path = tmp_path / "ledger.jsonl"
    make(path, rounds=3).close()
    last = json.loads(path.read_bytes().splitlines()[-1])
    forged = {**{key: value for key, value in last.items() if key != "hash"}, "round": 9, "count": -2}
    path.write_bytes(path.read_bytes() + hashed(last["hash"], forged)[0])
    with pytest.raises(Corrupted, match="nothing is given back"):
        Ledger.open(path)
