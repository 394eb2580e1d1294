"""Nodes whose limits are reached: the run ends when too few are left, and says how much of it was for nothing."""

from __future__ import annotations

import pytest
import torch

from cloister.deploy.halves import ServerHalf, Step
from cloister.deploy.wire.messages import Kind
from cloister.privacy.budgets import Budget
from deploy.halves.federations import FEDAVG, NAMES, PFL, terms_of
from deploy.halves.test_every_method_in_halves import values_of
from deploy.loops import HandNode, Threads, loop_terms

TINY = Budget(1e-3, 1e-5)
PATIENT = {"deadline": 200.0}  # a refusal that came too late would be none, and steps end when all have answered
MASKED = {**values_of("ddgauss", "full"), "rounds": 3}


@pytest.mark.parametrize("values", [{**PFL, "rounds": 3}, MASKED], ids=["plain", "masked"])
def test_a_run_ends_when_nobody_has_anything_left(values, tmp_path):
    threads = Threads(loop_terms(values, **PATIENT), tmp_path, limit=TINY).start()
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
    threads = Threads(loop_terms({**PFL, "rounds": 3}, min_replies=2, **PATIENT), tmp_path)
    threads.start_server()
    for name in NAMES:
        threads.start_node(name, limit=TINY if name in NAMES[:2] else None)
    threads.end()
    assert threads.server().reason == "all rounds are done"
    assert threads.server().certificate["steps_released"] == 3


def test_a_run_ends_where_too_few_are_left_and_others_go_on_alone(tmp_path):
    threads = Threads(loop_terms({**PFL, "rounds": 3}, min_replies=3, **PATIENT), tmp_path)
    threads.start_server()
    for name in NAMES:
        threads.start_node(name, limit=TINY if name in NAMES[:2] else None)
    threads.end()
    assert "at least 3 of 4 nodes with something left to spend, found 2" in threads.server().reason
    assert threads.server().certificate["steps_released"] == 0


def test_who_refused_the_terms_is_not_among_those_who_are_left(tmp_path):
    threads = Threads(loop_terms({**PFL, "rounds": 3}, min_replies=3, **PATIENT), tmp_path)
    threads.start_server()
    threads.start_node(NAMES[0], agree=lambda agreement: False)
    threads.start_node(NAMES[1], limit=TINY)
    for name in NAMES[2:]:
        threads.start_node(name)
    threads.end()
    assert "at least 3 of 4 nodes with something left to spend, found 2" in threads.server().reason


def hands(folder, rounds):
    """Two nodes that a test plays, and two that have nothing left."""
    threads = Threads(loop_terms({**PFL, "rounds": rounds}, **PATIENT), folder)
    threads.start_server()
    for name in NAMES[2:]:
        threads.start_node(name, limit=TINY)
    played = [HandNode(threads, name) for name in NAMES[:2]]
    for one in played:
        one.accept()
    return threads, played


def offered(hand, round):
    while (offer := hand.next(Kind.OFFER)).message.round != round:
        pass
    return offer


def refuse(hand, offer):
    content = {"reason": "Expected something left, found nothing.", "spent": True}
    hand.send(Kind.REFUSE, offer.digest, offer.message.round, content=content)


def test_a_node_that_was_started_again_or_answers_again_counts(tmp_path):
    threads, (ann, bob) = hands(tmp_path, rounds=4)
    refuse(ann, offered(ann, 1))
    ann.accept()  # perhaps with another limit
    refuse(bob, offered(bob, 1))
    second = offered(ann, 2)  # only she is left, and the run goes on
    refuse(ann, second)
    offer = offered(bob, 2)
    bob.reply(offer, torch.zeros_like(offer.message.tensors["w"]))  # a step that he could pay for
    refuse(bob, offered(bob, 3))
    refuse(ann, offered(ann, 3))
    assert "something left to spend, found 0" in bob.next(Kind.END).message.content["reason"]
    threads.stop.set()


def test_a_refusal_of_another_offer_ends_nothing(tmp_path):
    threads, (ann, bob) = hands(tmp_path, rounds=2)
    for hand in (ann, bob):
        hand.send(Kind.REFUSE, "another offer", 1, content={"reason": "late", "spent": True})
    for hand in (ann, bob):
        offer = offered(hand, 1)
        hand.reply(offer, torch.zeros_like(offer.message.tensors["w"]))
    assert offered(ann, 2)  # what answers another offer is left out
    threads.stop.set()


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
