"""What a server may leave out or make up: a node pays for what it gives and for rounds that pass, or gives nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister.deploy.certificates.chain import signed_head
from cloister.deploy.halves import NodeHalf, Step
from cloister.deploy.node import NodeLedger
from cloister.deploy.wire.identity import SERVER
from cloister.deploy.wire.messages import Kind, Message, seal
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from deploy.halves.federations import FEDAVG, NAMES
from deploy.hand_server import HandServer
from deploy.loops import SECRETS, Threads, loop_terms

ANN, CID = NAMES[0], NAMES[2]
CYCLIC = {**FEDAVG, "cohort": "cyclic", "clients_per_round": 2, "rounds": 4}
del CYCLIC["sampling_rate"]


def pair(folder, name, values, **options):
    threads = Threads(loop_terms(values), folder)
    server = HandServer(threads, name)
    threads.start_node(name, **options)
    return threads, server


def passed(server, *rounds):
    for number in rounds:
        body = replace(server.body(), step=Step(number, "update"))
        server.open(body)
        server.close(body.step)


def charged(folder, name):
    return NodeLedger.open(folder / name / "ledger.jsonl", writable=False).accounts()["client"]


@pytest.mark.parametrize("length", [4, 99])
def test_rounds_are_not_hidden_behind_a_history_that_is_called_longer_than_it_is(length, tmp_path):
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 5})
    server.greet(length=length)
    passed(server, 1, 2)
    body = replace(server.body(), step=Step(3, "update"))
    server.open(body)
    server.offer(body)
    assert "when this node agreed" in server.next(Kind.REFUSE).message.content["reason"]
    assert not charged(tmp_path, ANN).rounds
    threads.stop.set()


def test_a_node_that_comes_late_pays_for_its_turn_in_a_cycle(tmp_path):
    threads, server = pair(tmp_path, CID, CYCLIC)
    passed(server, 1)  # the turn of others, and the first round of the cycle
    server.greet()
    body = replace(server.body(), step=Step(2, "update"))
    server.open(body)
    server.offer(body, asked=[2, 3])
    server.next(Kind.REPLY)
    account = charged(tmp_path, CID)
    assert dict(account.events) == {server.half.side.fed.event: 1}
    server.close(body.step)
    server.end()
    threads.end(CID)
    assert threads.node(CID).certificate["run"]["epsilon"] > 0


@pytest.mark.parametrize("rounds", [(2,), (1, 3), (1, 1), (1, True)], ids=str)
def test_a_history_with_other_steps_than_those_of_the_terms_is_refused(rounds, tmp_path):
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 5})
    server.greet()
    passed(server, *rounds[:-1])
    body = replace(server.body(), step=Step(rounds[-1], "update"))
    server.open(body)
    server.offer(replace(body, step=Step(int(rounds[-1]), "update")))
    assert "as the terms have it" in server.next(Kind.REFUSE).message.content["reason"]
    assert not charged(tmp_path, ANN).rounds
    threads.stop.set()


@pytest.mark.parametrize("link", [{"link": "opened"}, {"link": "more"}, {"link": ["opened"]}], ids=str)
def test_links_that_are_none_are_refused_and_not_kept(link, tmp_path):
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 5})
    server.greet()
    server.chain.add(link)
    body = server.body()
    server.open(body)
    server.offer(body)
    assert "refused" in server.next(Kind.REFUSE).message.content["reason"]
    history = tmp_path / ANN / "runs" / server.run / "history.jsonl"
    assert history.read_bytes() == b""
    threads.stop.set()


def test_a_node_ends_when_rounds_passed_that_it_could_not_pay_for(tmp_path):
    limit = Budget(3.0, 1e-3)
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 5}, limit=limit)
    server.greet()
    passed(server, 1, 2, 3, 4, 5)
    server.end()
    threads.end(ANN)
    certificate = threads.node(ANN).certificate
    assert 0 < certificate["run"]["rounds"] < 5
    assert certificate["run"]["epsilon"] <= limit.epsilon


def test_a_server_that_falls_silent_is_paid_for_what_it_told(tmp_path):
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 5}, patience=1.0)
    server.greet()
    passed(server, 1, 2)
    body = replace(server.body(), step=Step(3, "update"))
    server.open(body)
    server.offer(body, offer={"more": 1})  # refused, with a history that is kept
    server.next(Kind.REFUSE)
    threads.end(ANN)
    assert charged(tmp_path, ANN).rounds == {1, 2}  # the third is open: this node gave nothing, and may yet be asked
    assert threads.node(ANN).certificate["run"]["rounds"] == 2


def test_why_a_reply_cannot_be_computed_is_not_told(tmp_path, monkeypatch):
    def answer(half, body):
        raise CloisterError("Expected rows without secrets, found 42: remove them.")

    monkeypatch.setattr(NodeHalf, "answer", answer)
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 1})
    server.greet()
    body = server.body()
    server.open(body)
    server.offer(body)
    assert "42" not in str(server.next(Kind.REFUSE).message.content)
    assert any("42" in reason for reason in threads.reasons(ANN))
    assert charged(tmp_path, ANN).rounds == {1}
    threads.stop.set()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipient": "bob"}, "Expected a message of the server to ann"),
        ({"sender": "bob"}, "Expected a message of the server to ann"),
        ({"run": "0" * 64}, "Expected the run"),
    ],
    ids=["to another", "from another", "of another run"],
)
def test_what_is_for_others_or_from_them_or_of_another_run_is_left_out(changes, word, tmp_path):
    threads, server = pair(tmp_path, ANN, {**FEDAVG, "rounds": 1})
    server.greet()
    body = server.body()
    server.open(body)
    content = {"what": "update", "asked": [0], "offer": {}, "first": 0, "links": server.chain.links}
    content["signature"] = signed_head(server.run, server.chain, SECRETS["server"])
    message = Message(Kind.OFFER, server.run, 1, SERVER, ANN, "", content, body.tensors)
    other = replace(message, **changes)
    server.transport.send(ANN, seal(other, SECRETS[other.sender]))
    own = server.offer(body)
    assert server.next(Kind.REPLY, Kind.REFUSE).message.answers == own
    assert any(word in reason for reason in threads.reasons(ANN))
    threads.stop.set()
