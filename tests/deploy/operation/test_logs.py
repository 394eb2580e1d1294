"""Logs are lines of JSON, and have no data in them whatever is given to them."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

from cloister.deploy.operation.logs import LOGGER, start_logs, stop_logs
from cloister.errors import CloisterError


@pytest.fixture
def log(tmp_path):
    """A logger, and what was written so far."""
    path = tmp_path / "logs" / "server.jsonl"
    handler = start_logs(path)
    yield logging.getLogger(f"{LOGGER}.server"), lambda: [json.loads(line) for line in path.read_text().splitlines()]
    stop_logs(handler)


def test_an_event_is_a_line_with_its_fields(log):
    logger, lines = log
    logger.info("offer sent", extra={"round": 3, "node": "cleveland", "members": ["cleveland", "va"], "share": 0.5})
    logger.debug("not asked for")
    logger.warning("reply of %s refused", "va")
    first, second = lines()
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "event": "offer sent",
        "part": "server",
        "round": 3,
        "node": "cleveland",
        "members": ["cleveland", "va"],
        "share": 0.5,
    }
    assert (second["level"], second["event"]) == ("warning", "reply of va refused")


SECRET = 63.25


@pytest.mark.parametrize(
    "value",
    [torch.full((3,), SECRET), np.full(3, SECRET), [SECRET, SECRET], {"age": SECRET}, (SECRET,), torch.tensor(SECRET)],
)
def test_no_tensor_array_or_list_of_numbers_is_written(log, value):
    logger, lines = log
    logger.info("reply", extra={"update": value})
    (line,) = lines()
    assert "63" not in json.dumps(line["update"])
    assert "left out" in line["update"]


def test_of_errors_that_are_not_ours_the_text_is_left_out(log):
    logger, lines = log
    for error in (ValueError("could not convert string to float: 'John Smith'"), CloisterError("Expected a, found b.")):
        try:
            raise error
        except ValueError:
            logger.exception("reply failed", extra={"cause": error})
    other, ours = lines()
    assert "John" not in json.dumps(other)
    assert other["error"].startswith("ValueError in test_logs.py:")
    assert ours["error"] == ours["cause"] == "Expected a, found b."


def test_a_line_stays_a_line_whatever_a_stranger_sends(log):
    logger, lines = log
    logger.info("stranger\n\x1b[2Jname", extra={"node": 'x"}\n{"level": "error"' + "y" * 10_000})
    (line,) = lines()
    assert line["event"] == "stranger  [2Jname"
    assert len(line["node"]) < 600


def test_a_log_that_is_moved_away_is_begun_anew(log, tmp_path):
    logger, lines = log
    logger.info("one")
    (tmp_path / "logs" / "server.jsonl").rename(tmp_path / "logs" / "old")
    logger.info("two")
    assert [line["event"] for line in lines()] == ["two"]


def test_levels_are_known_and_stderr_is_the_default(capsys):
    with pytest.raises(CloisterError, match="--log-level to be one of debug, info"):
        start_logs(level="loud")
    handler = start_logs(level="debug")
    logging.getLogger(f"{LOGGER}.node").debug("asked")
    stop_logs(handler)
    assert json.loads(capsys.readouterr().err)["part"] == "node"
