"""One price, one answer: a node that lost what it sent makes no second one, and one that sent nothing may."""

from __future__ import annotations

import pytest

from cloister.deploy.halves import Step
from cloister.deploy.node.mail import Mail
from cloister.deploy.node.replies import ReplyStore
from cloister.deploy.wire.messages import Kind
from deploy.halves.federations import FEDAVG, PFL
from deploy.halves.test_every_method_in_halves import values_of
from deploy.loops import loop_terms
from deploy.node.test_hostile_server import ANN, lines, opened, started
from deploy.synced import Synced

MASKED = {**values_of("ddgauss", "full"), "rounds": 2}


def restarted(threads, server):
    threads.stop.set()
    threads.end(ANN)
    threads.stop.clear()
    threads.start_node(ANN)
    server.greet()


def answer_files(folder):
    return list((folder / ANN / "runs").glob("*/replies/*.reply"))


@pytest.mark.parametrize(
    ("values", "federation", "kinds"),
    [
        (PFL, {}, (Kind.REPLY,)),
        ({**FEDAVG, "rounds": 8}, {"participation": "node"}, (Kind.REPLY, Kind.ABSENT)),
        (MASKED, {}, (Kind.KEYS,)),
    ],
    ids=["a reply", "a coin", "masking keys"],
)
def test_an_answer_that_was_lost_is_not_made_again(values, federation, kinds, tmp_path):
    threads, server = started(tmp_path, terms=loop_terms(values, **federation))
    body = opened(server)
    asked = {"asked": [0, 1, 2, 3]} if Kind.KEYS in kinds else {}
    server.offer(body, **asked)
    server.next(*kinds)
    (file,) = answer_files(tmp_path)
    file.unlink()
    paid = lines(tmp_path)
    restarted(threads, server)
    server.offer(body, **asked)
    refused = server.next(Kind.REFUSE, Kind.REPLY, Kind.ABSENT, Kind.KEYS).message
    assert refused.kind is Kind.REFUSE
    assert "a second release for one price" in refused.content["reason"]
    assert not answer_files(tmp_path)
    assert lines(tmp_path) == paid
    assert any("it is not given again" in reason for reason in threads.reasons(ANN))
    server.end()
    threads.end(ANN)


def test_after_a_lost_answer_the_next_step_is_answered_and_paid(tmp_path):
    threads, server = started(tmp_path, PFL)
    body = opened(server)
    server.offer(body)
    server.next(Kind.REPLY)
    answer_files(tmp_path)[0].unlink()
    restarted(threads, server)
    server.close(body.step)
    second = server.body(Step(2, "update"))
    server.open(second)
    server.offer(second)
    server.next(Kind.REPLY)
    assert lines(tmp_path) == 3
    server.end()
    threads.end(ANN)


@pytest.mark.parametrize("where", ["before the file", "after the file"])
def test_a_node_killed_before_its_answer_left_answers_for_what_it_paid(where, tmp_path, monkeypatch):
    """Nothing left: it computes once more, or sends what is there, and pays nothing more."""
    write, killed = ReplyStore.write, []

    def write_and_die(store, reply):
        if not killed and where == "after the file":
            write(store, reply)
        if not killed:
            killed.append(reply.data)
            raise KeyboardInterrupt  # as good as a kill: nothing after this instant happens
        write(store, reply)

    monkeypatch.setattr(ReplyStore, "write", write_and_die)
    threads, server = started(tmp_path, PFL)
    body = opened(server)
    server.offer(body)
    with pytest.raises(KeyboardInterrupt):
        threads.end(ANN)
    assert lines(tmp_path) == 2
    assert '"units": []' not in (tmp_path / ANN / "ledger.jsonl").read_text()
    threads.start_node(ANN)
    server.greet()
    server.offer(body)
    reply = server.next(Kind.REPLY)
    assert len(killed) == 1
    assert (reply.data == killed[0]) or where == "before the file"
    assert lines(tmp_path) == 2
    assert '"units": []' in (tmp_path / ANN / "ledger.jsonl").read_text()
    server.end()
    threads.end(ANN)


def test_no_answer_leaves_before_the_ledger_says_that_it_is_stored(tmp_path, monkeypatch):
    send, seen, synced = Mail.send, [], Synced(monkeypatch)

    def send_noted(mail, data):
        if b'"kind":"reply"' in data[:4096]:
            ledger = tmp_path / ANN / "ledger.jsonl"
            seen.append('"units": []' in ledger.read_text().splitlines()[-1] and synced.whole(ledger))
        return send(mail, data)

    monkeypatch.setattr(Mail, "send", send_noted)
    threads, server = started(tmp_path, PFL)
    server.offer(opened(server))
    server.next(Kind.REPLY)
    assert seen == [True]
    threads.stop.set()
    threads.end(ANN)
