"""A file that grows, with torn lines, and files that were put back."""

from __future__ import annotations

import json
import os

import pytest
from studio_runs import train

from cloister.errors import Corrupted
from cloister.privacy.ledger import Ledger
from cloister.runs.folder import RunFolder
from cloister.studio.listing import Lister
from cloister.studio.places import Places
from cloister.studio.run_view import Follower, RunView
from cloister.studio.tail import Tail, Writers, last_lines


def test_lines_come_when_they_are_whole(tmp_path):
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.read() == (False, [])
    text = '{"round": 1}\n{"round": 2, "word": "é"}\n'.encode()
    found = []
    for place in range(len(text)):  # byte by byte, also through the middle of a letter
        with file.open("ab") as open_file:
            open_file.write(text[place : place + 1])
        anew, lines = tail.read()
        assert not anew
        found += lines
    assert found == [{"round": 1}, {"round": 2, "word": "é"}]
    assert tail.read() == (False, [])


@pytest.mark.parametrize("replaced", [True, False])
def test_lines_that_were_dropped_are_read_anew(tmp_path, replaced):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"round": 1}\n{"round": 2}\n{"round": 3')
    tail = Tail(file)
    assert tail.read()[1] == [{"round": 1}, {"round": 2}]
    if replaced:
        (tmp_path / "new").write_text('{"round": 1}\n{"round": 2}\n{"round": 3}\n{"round": 4}\n')
        os.replace(tmp_path / "new", file)
    else:
        file.write_text('{"round": 1}\n')
    anew, lines = tail.read()
    assert anew
    assert [line["round"] for line in lines] == ([1, 2, 3, 4] if replaced else [1])


@pytest.mark.parametrize("damage", [b"{\n", b"\xff\n", b"[1]\n", b"\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_line_is_one_sentence(tmp_path, damage):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"round": 1}\n' + damage)
    with pytest.raises(Corrupted, match="found a damaged one"):
        Tail(file).read()
    if len(damage) < 100:
        with pytest.raises(Corrupted, match="found a damaged one"):
            last_lines(file)


def test_the_last_lines_of_a_long_file_are_read_from_its_end(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps({"round": n, "pad": "x" * 50}) + "\n" for n in range(5000)) + '{"torn')
    found = last_lines(file)
    assert [line["round"] for line in found] == list(range(found[0]["round"], 5000))
    assert 100 < len(found) < 2000


def test_a_follower_gives_what_the_run_reported(tmp_path):
    train(tmp_path / "one", record=["norms", "clipping", "thresholds"])
    follower = Follower(RunView.of(tmp_path / "one"))
    news = follower.news()
    lines = RunFolder.open(tmp_path / "one").metrics_file().public()
    assert [line["round"] for line in news["lines"]] == [1, 2, 3]
    assert [line["epsilon"] for line in news["lines"]] == [line["epsilon"] for line in lines]
    assert [line.get("accuracy") for line in news["lines"]] == [line.get("accuracy") for line in lines]
    assert all("cohort" not in line and "hash" not in line and "model" not in line for line in news["lines"])
    exact = [json.loads(line) for line in (tmp_path / "one" / "measurements.jsonl").read_text().splitlines()[1:]]
    assert [one["mean"] for one in news["measured"]] == [one["not_private"]["norms"]["mean"] for one in exact]
    assert [one["clipped"] for one in news["measured"]] == [one["not_private"]["clipping"]["clipped"] for one in exact]
    assert {one["clip"] for one in news["measured"]} == {1.0}
    assert follower.news() is None
    with (tmp_path / "one" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "epsilon": 1.5, "cohort": 2, "sec')
    assert follower.news() is None
    with (tmp_path / "one" / "metrics.jsonl").open("ab") as file:
        file.write(b'onds": 0.5}\n')
    more = follower.news()
    assert [line["round"] for line in more["lines"]] == [4]
    assert not more["anew"]


def test_a_run_is_running_while_its_ledger_is_open(tmp_path):
    train(tmp_path / "one")
    (tmp_path / "one" / "certificate.json").unlink()
    lister = Lister(Places(tmp_path), Writers())
    if lister.writers._locked() is None:
        pytest.skip("this system does not list locks")
    assert lister.row(tmp_path / "one").state == "interrupted"
    ledger = Ledger.open(tmp_path / "one" / "ledger.jsonl", writable=True)
    lister.writers._known = (-1.0, None)
    assert lister.row(tmp_path / "one").state == "running"
    ledger.close()
    lister.writers._known = (-1.0, None)
    assert lister.row(tmp_path / "one").state == "interrupted"


def test_without_a_list_of_locks_the_clock_decides(tmp_path):
    train(tmp_path / "one")
    writers = Writers(tmp_path / "no-such-file")
    assert writers.at_work(tmp_path / "one")
    os.utime(tmp_path / "one" / "ledger.jsonl", (1e9, 1e9))
    assert not writers.at_work(tmp_path / "one")
    assert not writers.at_work(tmp_path / "nothing")
