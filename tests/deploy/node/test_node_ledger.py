"""A node's ledger: across runs, once for an offer, never beyond its limit, whatever kills the process."""

from __future__ import annotations

import os

import pytest

from cloister.deploy.node.ledger import NodeLedger, Paid
from cloister.errors import BudgetExceededError, CloisterError, Corrupted
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Gaussian
from cloister.privacy.ledger import Charge
from cloister.privacy.unit import ProtectedUnit

CHARGE = Charge(Gaussian(2.0))
SAMPLE, CLIENT = ProtectedUnit.SAMPLE, ProtectedUnit.CLIENT


def paid(round=1, run="aa", offer="d1"):
    return Paid(run, round, "second moments", offer)


def test_an_offer_is_paid_once_and_a_second_one_for_its_step_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = NodeLedger.open(path)
    ledger.charge(paid(), SAMPLE, CHARGE)
    spent, size = ledger.spent(1e-5), path.stat().st_size
    ledger.charge(paid(), SAMPLE, CHARGE)
    with pytest.raises(CloisterError, match="a second one"):
        ledger.charge(paid(offer="d2"), SAMPLE, CHARGE)
    assert (ledger.spent(1e-5), path.stat().st_size) == (spent, size)
    ledger.charge(paid(run="bb", offer="d2"), SAMPLE, CHARGE)
    assert ledger.spent(1e-5) > spent
    assert ledger.runs == ["aa", "bb"]
    assert ledger.answered("bb", 1, "second moments") == "d2"


def test_what_all_runs_have_spent_is_that_of_each_together(tmp_path):
    ledger = NodeLedger.open(tmp_path / "ledger.jsonl")
    for run, rounds in (("aa", 3), ("bb", 2)):
        for number in range(1, rounds + 1):
            ledger.charge(paid(number, run), CLIENT, CHARGE)
    for unit in (SAMPLE, CLIENT):
        assert [ledger.accounts(run)[unit].releases for run in (None, "aa", "bb")] == [5, 3, 2]
    assert ledger.whole_client(1e-5) == pytest.approx(ledger.spent(1e-5))


@pytest.mark.parametrize("write", [NodeLedger.charge, lambda ledger, what, *_: ledger.note_stored(what)])
def test_a_line_is_on_the_disk_when_it_was_written(tmp_path, monkeypatch, write):
    ledger = NodeLedger.open(tmp_path / "ledger.jsonl")

    def full(descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CloisterError, match="reach the disk"):
        write(ledger, paid(), SAMPLE, CHARGE)


def test_it_goes_on_after_a_restart_and_is_for_its_owner_alone(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = NodeLedger.open(path)
    ledger.charge(paid(), CLIENT, CHARGE)
    name, spent = ledger.name, ledger.spent(1e-5)
    ledger.close()
    with path.open("ab") as file:
        file.write(b'{"count": 1, "ev')  # a line that the process did not finish
    again = NodeLedger.open(path)
    assert (again.name, again.spent(1e-5)) == (name, spent)
    assert again.answered("aa", 1, "second moments") == "d1"
    assert os.stat(path).st_mode & 0o077 == 0
    with pytest.raises(CloisterError, match="only writer"):
        NodeLedger.open(path)


def test_a_limit_holds_over_all_runs_and_can_be_changed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    one = NodeLedger.open(tmp_path / "other")
    one.charge(paid(), SAMPLE, CHARGE)
    limit = Budget(one.spent(1e-5) * 1.2, 1e-5)
    ledger = NodeLedger.open(path, limit)
    ledger.charge(paid(), SAMPLE, CHARGE)
    size = path.stat().st_size
    with pytest.raises(BudgetExceededError, match="within its own limit"):
        ledger.charge(paid(run="bb"), SAMPLE, CHARGE)
    assert path.stat().st_size == size
    assert ledger.answered("bb", 1, "second moments") is None
    ledger.close()
    more = NodeLedger.open(path, Budget(limit.epsilon * 2, 1e-5))
    more.charge(paid(run="bb"), SAMPLE, CHARGE)
    more.close()
    less = NodeLedger.open(path, limit)
    with pytest.raises(BudgetExceededError):
        less.charge(paid(run="cc"), SAMPLE, CHARGE)


def test_what_protects_all_rows_is_charged_to_each_and_not_the_other_way_round(tmp_path):
    ledger = NodeLedger.open(tmp_path / "ledger.jsonl")
    ledger.charge(paid(), CLIENT, CHARGE)
    whole = ledger.whole_client(1e-5)
    assert whole == ledger.spent(1e-5) > 0
    ledger.charge(paid(round=2), SAMPLE, CHARGE)
    assert ledger.whole_client(1e-5) is None
    assert ledger.spent(1e-5) > whole
    assert ledger.accounts("aa")["client"].releases == 1


def test_a_changed_line_is_found(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = NodeLedger.open(path)
    ledger.charge(paid(), SAMPLE, CHARGE)
    ledger.charge(paid(round=2), SAMPLE, CHARGE)
    ledger.close()
    path.write_bytes(path.read_bytes().replace(b'"round": 1', b'"round": 7'))
    with pytest.raises(Corrupted, match="altered"):
        NodeLedger.open(path)
