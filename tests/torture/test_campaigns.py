"""Every campaign at the smallest scale; and campaigns notice what they are there for."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from cloister.errors import CloisterError
from torture import configs, data_files, folders, kills, messages
from torture.campaign import Campaign, Hangs, Tally, limited, run
from torture.damage import Bomb, changed, hostile, with_other_values
from torture.outcomes import Unexpected, of_command, of_library
from torture.report import JSON, MARKDOWN, markdown


@pytest.mark.parametrize(
    "campaign",
    [
        configs.CAMPAIGN,
        pytest.param(messages.CAMPAIGN, marks=pytest.mark.slow),
        pytest.param(data_files.CAMPAIGN, marks=pytest.mark.slow),
        pytest.param(folders.CAMPAIGN, marks=pytest.mark.slow),
        pytest.param(kills.CAMPAIGN, marks=pytest.mark.slow),
    ],
    ids=lambda campaign: campaign.name,
)
def test_nothing_is_wrong_at_the_smallest_scale(campaign, tmp_path):
    tally = run(campaign, tmp_path / "work", tmp_path / "kept", 1, 0.0, lambda tally, size: None)
    assert tally.wrong == []
    assert tally.cases == campaign.least == campaign.size(0)
    assert sum(tally.counts.values()) >= tally.cases // 2


def test_an_interrupted_campaign_goes_on_where_it_stopped(tmp_path):
    seen: list[int] = []

    def make(folder: Path, seed: int):
        def case(number: int, tally: Tally) -> None:
            if number == 7 and seen.count(7) == 0:
                seen.append(7)
                raise KeyboardInterrupt
            seen.append(number)
            tally.counts["even"] += number % 2 == 0
            if number == 3:
                raise Unexpected("three")

        return case

    campaign = Campaign("numbers", "a number", 10, make, every=2)
    where = (tmp_path / "work", tmp_path / "kept", 0, 1.0, lambda tally, size: None)
    with pytest.raises(KeyboardInterrupt):
        run(campaign, *where)
    tally = run(campaign, *where)
    assert tally.cases == 10
    assert tally.counts["even"] == 5
    (wrong,) = tally.wrong
    assert wrong.startswith("case 3: Unexpected: three")
    assert json.loads((tmp_path / "kept" / "numbers-0.json").read_text())["cases"] == 10


def test_what_hangs_is_stopped():
    with pytest.raises(Hangs):
        _forever()


@limited(1)
def _forever() -> None:
    while True:
        pass


def test_what_is_no_error_of_ours_is_noticed():
    assert isinstance(of_library(lambda: int("3")), int)

    def refuse() -> None:
        raise CloisterError("Expected one, found two: take one.")

    def talk() -> None:
        raise CloisterError("Expected one,\nfound two: take one.")

    assert isinstance(of_library(refuse), CloisterError)
    with pytest.raises(Unexpected, match="no sentence"):
        of_library(talk)
    with pytest.raises(KeyError):
        of_library(lambda: {}["x"])
    assert of_command("methods", "nobody_wrote_this")[0] == 2


def test_a_bomb_is_one(tmp_path):
    """A content that executes nothing even where it is unpickled would show nothing."""
    kinds = {hostile(random.Random(number), tmp_path / "mark")[:1] for number in range(200)}
    assert len(kinds) > 5
    function, arguments = Bomb(tmp_path / "mark").__reduce__()
    function(*arguments).close()
    assert (tmp_path / "mark").exists()


def test_damage_follows_from_the_seed_and_damages():
    content = json.dumps({"a": [1, 2.5], "b": "x"}).encode() + b"\n"
    for harm in (changed, with_other_values):
        found = [harm(content, random.Random(number)) for number in range(50)]
        assert found == [harm(content, random.Random(number)) for number in range(50)]
        assert sum(one != content for one in found) > 40


def test_the_page_says_what_its_file_says():
    found = json.loads(JSON.read_text())
    assert MARKDOWN.read_text() == markdown(found), "python -m torture writes it"
    assert set(found) == {"crashes", "kills", "folders", "configs", "data files", "messages"}
    assert all(row["found_wrong"] == len(row["wrong"]) == 0 for row in found.values())
