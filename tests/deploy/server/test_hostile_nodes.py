"""What nodes may send: everything but an answer to the offer is refused with a sentence, and the others go on."""

from __future__ import annotations

import pytest
import torch

from cloister.deploy.server import server_status
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.messages import Kind
from deploy.halves.federations import FEDAVG, NAMES, Toy
from deploy.loops import SECRETS, HandNode, Threads, loop_terms

FULL = {**FEDAVG, "cohort": "full", "rounds": 1}
del FULL["sampling_rate"]
OTHERS = NAMES[1:]


def started(folder, values=FULL, **federation):
    """Three nodes, and one that a test plays."""
    threads = Threads(loop_terms(values, min_replies=3, **federation), folder).start(*OTHERS)
    hand = HandNode(threads, NAMES[0])
    hand.accept()
    return threads, hand


def ended(threads, hand, rounds=1):
    hand.next(Kind.END)
    hand.send(Kind.STATEMENT, content={"statement": {}})  # which is none, and refused
    hand.send(Kind.STATEMENT, content={"statement": {"run": {"epsilon": None, "delta": 0.1}, "private": True}})
    threads.end()
    links = threads.server().certificate["links"]
    assert [link["released"] for link in links if link["link"] == "closed"] == [True] * rounds
    return threads.reasons()


WRONG = {
    "norm": (lambda w: torch.full_like(w, 1e6), "norm"),
    "nan": (lambda w: torch.full_like(w, float("nan")), "finite"),
    "shape": (lambda w: w[:-1].clone(), "a message of"),
    "dtype": (lambda w: w.long(), "a message of"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_message_is_refused_alone(what, tmp_path):
    threads, hand = started(tmp_path)
    offer = hand.next(Kind.OFFER)
    make, word = WRONG[what]
    hand.reply(offer, make(offer.message.tensors["w"]))
    assert word in hand.next(Kind.REFUSE).message.content["reason"]
    reasons = ended(threads, hand)
    assert any(word in reason for reason in reasons)
    status = server_status(threads.folder / "server")
    assert [node["replies"] for node in status["nodes"]] == [0, 1, 1, 1]


def test_strangers_repetitions_and_late_answers_change_nothing(tmp_path):
    values = {**FULL, "rounds": 2}
    threads, hand = started(tmp_path, values)
    offer = hand.next(Kind.OFFER)
    zero = torch.zeros_like(offer.message.tensors["w"])
    stranger = HandNode(threads, NAMES[0])
    stranger.key = PrivateKey.from_seed(b"x" * 32)
    stranger.reply(offer, zero)
    hand.reply(offer, zero, run="another run")
    changed = bytearray(hand.reply(offer, zero))
    changed[-1] ^= 1
    hand.transport.send(bytes(changed))
    hand.reply(offer, zero + 1e-3)  # a second answer: the first one counts
    second = hand.next(Kind.OFFER)
    while second.digest == offer.digest:
        second = hand.next(Kind.OFFER)
    hand.reply(offer, zero)  # of a step that is over
    hand.transport.send(b"x" * (9 * 2**20))
    hand.reply(second, zero)
    reasons = ended(threads, hand, rounds=2)
    for word in (
        "signature",
        "found one of another run",
        "late, repeated",
        "a message of at most",
        "body that was signed",
    ):
        assert any(word in reason for reason in reasons), (word, reasons)
    repeated = sum(event["event"] == "repeated answer left out" for event in threads.events["server"])
    assert repeated + sum("late, repeated" in reason for reason in reasons) >= 2  # the step may have been closed before


def test_a_round_with_too_few_replies_is_charged_and_not_released(tmp_path):
    terms = loop_terms({**FULL, "rounds": 2}, min_replies=4, deadline=1.0)
    threads = Threads(terms, tmp_path).start(*OTHERS)
    hand = HandNode(threads, NAMES[0])
    hand.accept()  # and says nothing more
    threads.end("server", *OTHERS)
    certificate = threads.server().certificate
    assert certificate["steps_not_released"] == [[1, "update"], [2, "update"]]
    assert certificate["steps_released"] == 0
    assert certificate["price"]["epsilon"] > 0
    assert len([link for link in certificate["links"] if link.get("charged")]) == 2
    assert torch.equal(threads.model(), Toy(terms).server.progress.w)


def test_other_terms_at_a_node_are_refused(tmp_path):
    threads = Threads(loop_terms(FULL, min_replies=3), tmp_path).start(*OTHERS)
    threads.start_node(NAMES[0], terms=loop_terms({**FULL, "lr": 0.4}, min_replies=3))
    with pytest.raises(ValueError, match="Expected the terms"):
        threads.end(NAMES[0])
    threads.end("server", *OTHERS)
    assert any("ask which of them were agreed on" in reason for reason in threads.reasons())


def test_a_server_does_not_go_on_under_other_terms(tmp_path):
    Threads(loop_terms(FULL), tmp_path).start().end()
    threads = Threads(loop_terms({**FULL, "lr": 0.4}), tmp_path)
    threads.start_server()
    with pytest.raises(ValueError, match="nodes agreed to the former"):
        threads.end("server")


def test_an_operator_can_refuse(tmp_path):
    threads = Threads(loop_terms(FULL, min_replies=3), tmp_path).start(*OTHERS)
    seen = []
    threads.start_node(NAMES[0], agree=lambda agreement: bool(seen.append(agreement)))
    threads.end()
    assert threads.node(NAMES[0]).state == "refused"
    assert seen[0].digest == threads.terms.digest
    assert seen[0].spent == 0
    assert threads.server().certificate["without_statement"] == [NAMES[0]]
    assert not list((tmp_path / NAMES[0]).glob("runs/*/replies/*"))


def test_a_server_needs_its_own_key(tmp_path):
    threads = Threads(loop_terms(FULL), tmp_path)
    secret = SECRETS["server"]
    try:
        SECRETS["server"] = PrivateKey.from_seed(b"y" * 32)
        threads.start_server()
        with pytest.raises(ValueError, match="the private key that belongs to server_key"):
            threads.end("server")
    finally:
        SECRETS["server"] = secret
