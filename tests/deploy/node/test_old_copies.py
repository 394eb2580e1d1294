"""A ledger that was restored from an old copy has forgotten what was spent since: a node that can know it refuses."""

from __future__ import annotations

import shutil

import pytest

from cloister.deploy.node.old_copies import OldLedger
from cloister.deploy.wire.identity import SERVER
from cloister.deploy.wire.messages import Kind, Message, header_of, seal
from deploy.halves.federations import NAMES, PFL
from deploy.halves.test_every_method_in_halves import values_of
from deploy.hand_server import HandServer
from deploy.loops import SECRETS, Threads, loop_terms
from deploy.node.test_hostile_server import ANN, opened, started

BOB = NAMES[1]


def test_a_ledger_that_is_older_than_a_stored_answer_is_refused(tmp_path):
    threads, server = started(tmp_path)
    old = (tmp_path / ANN / "ledger.jsonl").read_bytes()
    server.offer(opened(server))
    server.next(Kind.REPLY)
    threads.stop.set()
    threads.end(ANN)
    threads.stop.clear()
    (tmp_path / ANN / "ledger.jsonl").write_bytes(old)
    threads.start_node(ANN)
    with pytest.raises(OldLedger, match=r"paid for the answer to round 1 .* restore the newest one"):
        threads.end(ANN)


def test_a_ledger_that_is_older_than_a_certificate_is_refused_in_any_later_run(tmp_path):
    threads, server = started(tmp_path)
    old = (tmp_path / ANN / "ledger.jsonl").read_bytes()
    server.offer(opened(server))
    server.next(Kind.REPLY)
    server.end()
    threads.end(ANN)
    (tmp_path / ANN / "ledger.jsonl").write_bytes(old)
    shutil.rmtree(next((tmp_path / ANN / "runs").iterdir()) / "replies")
    threads.start_node(ANN)
    with pytest.raises(OldLedger, match=r"certificate\.json names, found it missing"):
        threads.end(ANN)


@pytest.mark.parametrize("values", [PFL, {**values_of("ddgauss", "full"), "rounds": 2}], ids=["plain", "masked"])
def test_a_folder_restored_as_a_whole_is_found_by_what_the_server_holds(values, tmp_path):
    """The real server gives back what the node had signed; the node, on an old copy of all its files, ends."""
    terms = loop_terms({**values, "rounds": 2}, deadline=60.0)
    threads = Threads(terms, tmp_path)
    threads.start_server()
    for name in NAMES[1:]:
        threads.start_node(name)
    ann = tmp_path / ANN
    threads.start_node(ANN, agree=lambda agreement: bool(shutil.copytree(ann, tmp_path / "copy")))
    threads.end()
    assert (tmp_path / "server" / "answers" / ANN).exists()
    shutil.rmtree(ann)
    shutil.move(tmp_path / "copy", ann)
    (tmp_path / "server" / "statements" / ANN).unlink()  # so that the server waits for this node once more
    threads.start_server()
    threads.start_node(ANN)
    with pytest.raises(OldLedger, match="with this node's signature"):
        threads.end(ANN)
    threads.stop.set()


def answer(sender=ANN, run=None, kind=Kind.REPLY, key=None):
    message = Message(kind, run or "", 1, sender, SERVER, "0" * 64, {"reply": {}})
    return header_of(seal(message, SECRETS[key or sender])).hex()


@pytest.mark.parametrize(
    "made",
    [
        lambda run: "no digits",
        lambda run: answer(run=run, key=BOB),
        lambda run: answer(sender=BOB, run=run),
        lambda run: answer(run="another"),
        lambda run: answer(run=run, kind=Kind.REFUSE),
        lambda run: answer(run=run) + "00",
    ],
    ids=["no digits", "forged", "another node's", "another run's", "a refusal", "with more behind it"],
)
def test_what_this_node_has_not_signed_proves_nothing(made, tmp_path):
    threads = Threads(loop_terms(PFL), tmp_path)
    server = HandServer(threads, ANN)
    threads.start_node(ANN)
    server.greet(answer=made(server.run))
    server.offer(opened(server))
    server.next(Kind.REPLY)
    assert len(threads.reasons(ANN)) == 1
    threads.stop.set()
    threads.end(ANN)


def test_what_this_node_has_signed_and_its_ledger_has_not_paid_for_ends_it(tmp_path):
    threads = Threads(loop_terms(PFL), tmp_path)
    server = HandServer(threads, ANN)
    threads.start_node(ANN)
    server.next(Kind.HELLO)
    stands = {"length": len(server.chain), "head": server.chain.head}
    told = {"terms": server.terms.to_json(), "nonce": server.nonce, **stands, "answer": answer(run=server.run)}
    server.send(Kind.TERMS, content=told)
    with pytest.raises(OldLedger, match="answer in round 1"):
        threads.end(ANN)
