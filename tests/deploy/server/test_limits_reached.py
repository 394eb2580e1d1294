"""Nodes whose limits are reached: the run goes to its end, and says how much of it was for nothing."""

from __future__ import annotations

from cloister.privacy.budgets import Budget
from deploy.halves.federations import NAMES, PFL
from deploy.loops import Threads, loop_terms


def test_the_end_says_how_many_steps_were_not_released(tmp_path):
    threads = Threads(loop_terms({**PFL, "rounds": 3}), tmp_path, limit=Budget(1e-3, 1e-5)).start()
    threads.end()
    result = threads.server()
    assert result.reason == "all rounds are done, but 3 of 3 steps had too few replies and were not released"
    assert "charged only: update of rounds 1 to 3" in (result.folder / "certificate.txt").read_text()
    assert threads.node(NAMES[0]).reason == result.reason
    first = threads.events[NAMES[0]][0]["event"]
    assert first == "node takes part, and waits for the server"
