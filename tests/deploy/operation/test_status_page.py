"""The page of a server: what is on it, that it needs nothing else, and that nobody can write into it."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.table import Table

from cloister.deploy.operation.status import Budget, Event, NodeStatus, RoundStatus, Status
from cloister.deploy.operation.status_page import page
from cloister.deploy.operation.status_text import status_tables
from cloister.errors import CloisterError

NOW = 1_800_000_000.0
STATUS = Status(
    name="four hospitals",
    phase="running",
    round=17,
    rounds=20,
    time=NOW,
    method="pfl",
    run="ab" * 32,
    terms_digest="cd" * 32,
    min_replies=3,
    budget=Budget("client", 1.5, 2.0, 1e-3),
    nodes=(NodeStatus("cleveland", "12-34", "answered", NOW - 4, 17, 0, 0, 1.42), NodeStatus("va", refusals=3)),
    history=(RoundStatus(18), RoundStatus(17, "update", "released", 4, 3, 1, 0.4), RoundStatus(0, "statistics")),
    events=(Event(NOW, "va refuses round 17", "warning"),),
)


class Reader(HTMLParser):
    """Tags, their attributes, and the words between them; every tag that is opened must be closed."""

    ALONE = ("meta", "!doctype")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.ALONE:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_the_page_has_nodes_rounds_budget_and_events():
    text = Reader(page(STATUS)).text
    for words in (
        *("four hospitals", "Running", "17 of 20", "1 of 2", "a round needs 3 replies", "epsilon 1.50 of 2"),
        *("0.50 left, for each client at delta 0.001", "cleveland answered 4 s ago 17 0 0 1.42"),
        *("va not heard of never 0 0 3", "17 update released 4 3 1 0.4", "before statistics", "va refuses round 17"),
        *("ab" * 32, "cd" * 32, "12-34"),
    ):
        assert words in text
    assert "NOT PRIVATE" not in text


def test_where_nodes_keep_the_accounts_the_largest_that_is_stated_is_shown():
    status = replace(STATUS, budget=Budget("sample", None, None, 1e-3, "node"))
    text = Reader(page(status)).text
    assert "epsilon 1.42 at most for each sample at delta 0.001; every node keeps its own account" in text
    assert "stated at the end" in Reader(page(replace(status, nodes=()))).text


def test_test_mode_is_marked():
    assert "Test mode: NOT PRIVATE." in Reader(page(Status("a", "waiting", 0, 3, NOW, test_mode=True))).text


def test_nothing_is_loaded_from_elsewhere_and_no_script_runs():
    text = page(STATUS)
    assert not {tag for tag, _ in Reader(text).tags} & {"script", "link", "img", "iframe", "object", "form", "a"}
    for word in ("http:", "https:", "url(", "@import", "src="):
        assert word not in text


def test_a_page_is_asked_for_again_until_all_is_over():
    assert 'http-equiv="refresh"' in page(STATUS)
    assert 'http-equiv="refresh"' not in page(Status("a", "finished", 3, 3, NOW))


BAD = "<script>alert('x')</script><b \"&"


def test_every_word_is_escaped():
    status = Status(
        *(BAD, "running", 1, 2, NOW, BAD, BAD, BAD, BAD),
        budget=Budget(BAD, None, None, None, BAD),
        nodes=(NodeStatus(BAD, BAD, BAD),),
        history=(RoundStatus(1, BAD, BAD),),
        events=(Event(NOW, BAD, BAD),),
    )
    found = Reader(page(status))
    assert not [tag for tag, _ in found.tags if tag in ("script", "b")]
    assert found.text.count(BAD) >= 11


def test_a_status_survives_json_and_a_newer_server():
    value = json.loads(json.dumps(STATUS.to_json()))
    assert Status.from_json(value) == STATUS
    value["nodes"][0]["mood"], value["weather"] = "good", "fair"
    assert Status.from_json(value) == STATUS


@pytest.mark.parametrize("value", [None, [], {}, {"name": "a"}, {**STATUS.to_json(), "phase": "odd"}, {"nodes": 3}])
def test_what_is_no_status_is_refused(value):
    with pytest.raises(CloisterError, match="Expected the status of a federation"):
        Status.from_json(value)


def test_a_terminal_tells_how_long_ago_a_node_was_heard_of_by_now_and_not_when_all_ended():
    tables = [one for one in status_tables(replace(STATUS, phase="finished"), NOW + 7200) if isinstance(one, Table)]
    assert list(tables[0].columns[2].cells) == ["2 h ago", "never"]
