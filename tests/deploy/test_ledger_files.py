"""A ledger is made in one step."""

from __future__ import annotations

import os
import stat

import pytest

from cloister.deploy.ledger_files import open_or_create
from cloister.errors import CloisterError, Corrupted
from cloister.privacy.events import Gaussian
from cloister.privacy.ledger import Ledger


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("where", ["write", "link"])
def test_whoever_is_killed_while_making_one_leaves_none(tmp_path, monkeypatch, where):
    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        if where == "link":
            patched.setattr(os, "link", killed)
        else:
            patched.setattr(Ledger, "_write_all", killed)
        with pytest.raises(Killed):
            open_or_create(tmp_path / "ledger.jsonl", "run", {})
    assert not (tmp_path / "ledger.jsonl").exists()
    ledger = open_or_create(tmp_path / "ledger.jsonl", "run", {})
    ledger.charge("client", Gaussian(1.0), round=1, repeatable=True)
    ledger.close()
    assert stat.S_IMODE((tmp_path / "ledger.jsonl").stat().st_mode) == 0o600
    again = open_or_create(tmp_path / "ledger.jsonl", "another", {})
    assert again.subject == "run"
    assert len(again.entries) == 1
    again.close()


def test_what_another_process_made_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    path, link = tmp_path / "ledger.jsonl", os.link

    def late(draft: object, place: object) -> None:
        path.write_text("of another process")
        link(draft, place)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(CloisterError, match="alone"):
        open_or_create(path, "run", {})
    assert path.read_text() == "of another process"
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.jsonl"]


def test_an_empty_ledger_is_one_that_lost_its_lines(tmp_path):
    (tmp_path / "ledger.jsonl").write_text("")
    with pytest.raises(Corrupted):
        open_or_create(tmp_path / "ledger.jsonl", "run", {})
