"""In which order a node works: paid and on the disk, then computed, then stored and on the disk, then sent."""

from __future__ import annotations

import json

from cloister.deploy.halves import NodeHalf
from cloister.deploy.node import NodeLedger
from cloister.deploy.node.mail import Mail
from cloister.deploy.node.replies import ReplyStore
from cloister.deploy.wire.messages import Kind, open_message
from deploy.halves.federations import NAMES, PFL
from deploy.halves.test_every_method_in_halves import values_of
from deploy.hand_server import HandServer
from deploy.loops import Threads, loop_terms
from deploy.synced import Synced

ANN = NAMES[0]


def test_nothing_is_computed_before_it_is_paid_for_nor_sent_before_it_is_stored(tmp_path, monkeypatch):
    terms, synced, seen = loop_terms(PFL), Synced(monkeypatch), []
    answer, send = NodeHalf.answer, Mail.send
    place = tmp_path / ANN

    def answer_paid(half, body):
        ledger = place / "ledger.jsonl"
        paid = NodeLedger.open(ledger, writable=False).answered(half.run, body.step.round, body.step.what)
        on_disk = synced.whole(ledger) and synced.folder(place) and synced.folder(tmp_path)
        seen.append(("computed", paid is not None, on_disk))
        return answer(half, body)

    def send_stored(mail, data):
        message = open_message(data, terms.register).message
        if message.kind is Kind.REPLY:
            (file,) = (place / "runs" / message.run / "replies").glob("*.reply")
            stored = ReplyStore(file.parent).newest()
            seen.append(("sent", stored is not None and stored.data == data, synced.whole(file)))
        return send(mail, data)

    monkeypatch.setattr(NodeHalf, "answer", answer_paid)
    monkeypatch.setattr(Mail, "send", send_stored)
    threads = Threads(terms, tmp_path)
    server = HandServer(threads, ANN)
    threads.start_node(ANN)
    server.greet()
    body = server.body()
    server.open(body)
    server.offer(body)
    server.next(Kind.REPLY)
    assert seen == [("computed", True, True), ("sent", True, True)]
    threads.stop.set()
    threads.end(ANN)


STAGES = {Kind.KEYS: ("keys",), Kind.SHARES: ("shares",), Kind.MASKED: ("masked",), Kind.UNMASK: ("agreed", "unmasked")}


def test_what_a_node_has_done_in_a_masked_sum_is_on_the_disk_before_its_answer_leaves(tmp_path, monkeypatch):
    terms = loop_terms({**values_of("ddgauss", "full"), "rounds": 1})
    synced, seen, send = Synced(monkeypatch), [], Mail.send

    def send_kept(mail, data):
        message = open_message(data, terms.register).message
        if message.kind in STAGES:
            file = tmp_path / mail.name / "runs" / message.run / "masked"
            state = json.loads(json.loads(file.read_bytes())["state"])
            known = state["stage"] in STAGES[message.kind] and synced.whole(file)
            seen.append((mail.name, message.kind, state["stage"] if known else "not kept"))
        return send(mail, data)

    monkeypatch.setattr(Mail, "send", send_kept)
    Threads(terms, tmp_path).start().end()
    done = [(kind, stage) for kind, stages in STAGES.items() for stage in stages]
    assert set(seen) == {(name, kind, stage) for name in NAMES for kind, stage in done}
