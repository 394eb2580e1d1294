"""Masked sums through the loops: members that vanish, servers and nodes that are killed between any two messages."""

from __future__ import annotations

import pytest
import torch

from cloister.deploy.node.masked_step import MaskedAnswer
from cloister.deploy.server.masked_step import STAGES, MaskedStep
from cloister.deploy.wire.messages import Kind
from deploy.halves.federations import NAMES, simulated
from deploy.halves.test_every_method_in_halves import values_of
from deploy.loops import HandNode, Threads, loop_terms

VALUES = {**values_of("ddgauss", "full"), "rounds": 2}


class Killed(BaseException):
    """What a test raises where a process would be killed."""


def test_too_few_members_are_charged_and_not_released_and_the_next_round_goes_on(tmp_path):
    terms = loop_terms(VALUES, min_replies=4, deadline=1.5)
    threads = Threads(terms, tmp_path).start(*NAMES[1:])
    hand = HandNode(threads, NAMES[0])
    hand.accept()  # and says nothing more
    threads.end()
    certificate = threads.server().certificate
    assert certificate["steps_not_released"] == [[1, "update"], [2, "update"]]
    assert certificate["price"]["epsilon"] > 0
    assert any("the sum stays closed" in reason for reason in threads.reasons())
    assert threads.node(NAMES[1]).certificate["run"]["releases"] == 2
    assert "under masks" in certificate["hidden_by_masks"][0]


@pytest.mark.slow  # the others have to answer before the deadline, and are waited for until then
def test_a_member_that_is_lost_does_not_hold_up_enough_others(tmp_path):
    terms = loop_terms({**VALUES, "rounds": 1}, min_replies=3, deadline=20.0)
    threads = Threads(terms, tmp_path).start(*NAMES[1:])
    hand = HandNode(threads, NAMES[0])
    hand.accept()
    offer = hand.next(Kind.OFFER)
    hand.send(Kind.REFUSE, offer.digest, 1, content={"reason": "not today"})
    threads.end()
    assert threads.server().certificate["steps_released"] == 1


POINTS = [(stage, when) for stage in STAGES[:-1] for when in ("before", "after")]


@pytest.mark.parametrize(
    ("stage", "when"),
    [pytest.param(*point, marks=() if point == ("masked", "after") else pytest.mark.slow) for point in POINTS],
)
def test_a_server_that_is_killed_in_a_masked_step_goes_on_with_it(stage, when, tmp_path, monkeypatch):
    left = [1]
    close = MaskedStep.close

    def killed(self, came=None):
        here = left and self.stage == stage and came is None
        if here and when == "before":
            left.clear()
            raise Killed
        close(self, came)
        if here:
            left.clear()
            raise Killed

    monkeypatch.setattr(MaskedStep, "close", killed)
    terms = loop_terms(VALUES)
    threads = Threads(terms, tmp_path).start()
    with pytest.raises(Killed):
        threads.end("server")
    threads.start_server()
    threads.end()
    assert threads.server().certificate["steps_not_released"] == []
    torch.testing.assert_close(threads.model(), simulated(terms), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("at", [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (2, 3, 4, 5))])
def test_a_node_that_is_killed_in_a_masked_step_goes_on_with_it(at, tmp_path, monkeypatch):
    written = [0]
    write = MaskedAnswer._write

    def killed(self):
        write(self)
        if self._node.name == NAMES[2]:
            written[0] += 1
            if written[0] == at:
                raise Killed

    monkeypatch.setattr(MaskedAnswer, "_write", killed)
    terms = loop_terms(VALUES)
    threads = Threads(terms, tmp_path).start()
    with pytest.raises(Killed):
        threads.end(NAMES[2])
    threads.start_node(NAMES[2])
    threads.end()
    assert threads.server().certificate["steps_not_released"] == []
    torch.testing.assert_close(threads.model(), simulated(terms), rtol=1e-6, atol=1e-7)
    assert threads.node(NAMES[2]).certificate["run"]["releases"] == 2


def test_a_node_that_lost_its_keys_stays_out_of_the_step(tmp_path, monkeypatch):
    answer = MaskedAnswer.answer

    def killed(self, message):
        if self._node is not None and self._node.name == NAMES[3]:
            raise Killed
        return answer(self, message)

    monkeypatch.setattr(MaskedAnswer, "answer", killed)
    threads = Threads(loop_terms({**VALUES, "rounds": 1}, min_replies=3), tmp_path).start()
    with pytest.raises(Killed):
        threads.end(NAMES[3])
    for path in (tmp_path / NAMES[3]).glob("runs/*/masked"):
        path.unlink()
    threads.start_node(NAMES[3])
    threads.end()
    assert any("a second set of keys" in reason for reason in threads.reasons(NAMES[3]))
    assert threads.server().certificate["steps_released"] == 1
