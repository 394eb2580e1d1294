"""Nodes whose limits are reached: the run ends when too few are left, and says how much of it was for nothing."""

from __future__ import annotations

import pytest

from cloister.deploy.halves import ServerHalf, Step
from cloister.privacy.budgets import Budget
from deploy.halves.federations import FEDAVG, NAMES, PFL, terms_of
from deploy.halves.test_every_method_in_halves import values_of
from deploy.loops import Threads, loop_terms

TINY = Budget(1e-3, 1e-5)
MASKED = {**values_of("ddgauss", "full"), "rounds": 3}


@pytest.mark.parametrize("values", [{**PFL, "rounds": 3}, MASKED], ids=["plain", "masked"])
def test_a_run_ends_when_nobody_has_anything_left(values, tmp_path):
    threads = Threads(loop_terms(values), tmp_path, limit=TINY).start()
    threads.end()
    result = threads.server()
    fewest = 4 if values is MASKED else 1
    assert result.reason == (
        f"Expected at least {fewest} of 4 nodes with something left to spend, found 0: the run ends before round 2 of 3"
    )
    assert "charged only: update of round 1\n" in (result.folder / "certificate.txt").read_text()
    assert threads.node(NAMES[0]).reason == result.reason
    first = threads.events[NAMES[0]][0]["event"]
    assert first == "node takes part, and waits for the server"
    assert not any(name in result.reason for name in NAMES)  # who has spent what is no part of the history


def test_a_run_goes_on_while_enough_are_left(tmp_path):
    threads = Threads(loop_terms({**PFL, "rounds": 3}, min_replies=2), tmp_path)
    threads.start_server()
    for name in NAMES:
        threads.start_node(name, limit=TINY if name in NAMES[:2] else None)
    threads.end()
    assert threads.server().reason == "all rounds are done"
    assert threads.server().certificate["steps_released"] == 3


def test_a_run_ends_where_too_few_are_left_and_others_go_on_alone(tmp_path):
    threads = Threads(loop_terms({**PFL, "rounds": 3}, min_replies=3), tmp_path)
    threads.start_server()
    for name in NAMES:
        threads.start_node(name, limit=TINY if name in NAMES[:2] else None)
    threads.end()
    assert "at least 3 of 4 nodes with something left to spend, found 2" in threads.server().reason
    assert threads.server().certificate["steps_released"] == 0


FULL = {name: value for name, value in FEDAVG.items() if name != "sampling_rate"} | {"cohort": "full"}
FIXED = {**FULL, "cohort": "fixed_size", "clients_per_round": 2}


@pytest.mark.parametrize(
    ("values", "federation", "fewest"),
    [
        (FEDAVG, {"min_replies": 3}, 1),  # a cohort may be drawn that is smaller, and all of it reply
        (FULL, {"min_replies": 3}, 3),
        (FULL, {}, 1),
        (FIXED, {"min_replies": 3}, 2),
        (FEDAVG, {"min_replies": 3, "participation": "node"}, 3),
        (MASKED, {}, 4),
        (MASKED, {"min_replies": 3}, 3),
    ],
    ids=["poisson", "full", "no minimum", "fixed size", "nodes draw", "masked", "masked with fewer"],
)
def test_how_many_must_be_left(values, federation, fewest):
    half = ServerHalf.of(terms_of(values, **federation), "run")
    assert half.fewest(Step(1, "update")) == fewest
