"""What a node does whatever a server sends: it pays first, answers an offer once, and tells what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from cloister.deploy.certificates.chain import Chain
from cloister.deploy.halves import Step
from cloister.deploy.node import NodeLedger
from cloister.deploy.wire.messages import Kind
from cloister.privacy.budgets import Budget
from deploy.halves.federations import FEDAVG, NAMES, PFL
from deploy.hand_server import HandServer
from deploy.loops import Threads, loop_terms

ANN = NAMES[0]


def started(folder, values=PFL, limit=None, terms=None, **options):
    threads = Threads(terms or loop_terms(values), folder, limit=limit)
    server = HandServer(threads, ANN)
    threads.start_node(ANN, **options)
    server.greet()
    return threads, server


def lines(folder):
    """The lines of the ledger that charge somebody, and the first one."""
    found = [json.loads(line) for line in (folder / ANN / "ledger.jsonl").read_bytes().splitlines()]
    return sum(line.get("units") != [] for line in found)


def opened(server):
    body = server.body()
    server.open(body)
    return body


def test_the_same_offer_gets_the_same_bytes_and_is_paid_once(tmp_path):
    threads, server = started(tmp_path)
    body = opened(server)
    server.offer(body)
    first = server.next(Kind.REPLY)
    paid = lines(tmp_path)
    server.offer(body)
    assert server.next(Kind.REPLY).data == first.data
    assert lines(tmp_path) == paid == 2
    server.end()
    threads.end(ANN)


def test_after_a_restart_the_same_offer_gets_the_same_bytes(tmp_path):
    threads, server = started(tmp_path)
    body = opened(server)
    server.offer(body)
    first = server.next(Kind.REPLY)
    threads.stop.set()
    threads.end(ANN)
    threads.stop.clear()
    threads.start_node(ANN, agree=lambda agreement: pytest.fail("asked twice"))
    server.greet()
    server.offer(body)
    assert server.next(Kind.REPLY).data == first.data
    assert lines(tmp_path) == 2
    server.end()
    threads.end(ANN)


def test_a_second_offer_for_a_round_is_refused(tmp_path):
    threads, server = started(tmp_path)
    before = Chain.of(server.chain.links)
    body = opened(server)
    server.offer(body)
    server.next(Kind.REPLY)
    paid = lines(tmp_path)
    server.offer(body, deadline=7.0)  # the same numbers in another message
    refused = server.next(Kind.REFUSE).message.content
    assert "a second one" in refused["reason"]
    assert refused["spent"] is False  # it answers others
    other = replace(body, tensors={"w": body.tensors["w"] + 1})
    server.chain = before
    server.open(other)
    server.offer(other)  # another model, in a history that was rewritten for it
    assert "extend the one that this node knows" in server.next(Kind.REFUSE).message.content["reason"]
    assert lines(tmp_path) == paid
    threads.stop.set()


def test_an_offer_that_is_not_in_the_history_is_refused(tmp_path):
    threads, server = started(tmp_path)
    body = opened(server)
    server.offer(replace(body, tensors={"w": body.tensors["w"] + 1}))
    assert "everybody is told" in server.next(Kind.REFUSE).message.content["reason"]
    server.offer(body, signature="00" * 64)
    assert "signature" in server.next(Kind.REFUSE).message.content["reason"]
    server.offer(replace(body, step=Step(2, "update")))
    assert "open round 2 last" in server.next(Kind.REFUSE).message.content["reason"]
    beyond = replace(body, step=Step(99, "update"))
    server.open(beyond)
    server.offer(beyond)
    assert "99" in server.next(Kind.REFUSE).message.content["reason"]
    assert lines(tmp_path) == 1
    threads.stop.set()


def test_an_offer_of_a_round_that_is_over_is_refused(tmp_path):
    threads, server = started(tmp_path)
    body = opened(server)
    old = Chain.of(server.chain.links)
    server.close(body.step)
    second = replace(body, step=Step(2, "update"))
    server.open(second)
    server.offer(second)
    server.next(Kind.REPLY)
    server.offer(body, chain=old)
    assert "which is over" in server.next(Kind.REFUSE).message.content["reason"]
    assert lines(tmp_path) == 2
    threads.stop.set()


def test_missing_links_are_asked_for(tmp_path):
    threads, server = started(tmp_path)
    body = opened(server)
    server.offer(body, first=1)
    assert server.next(Kind.ACCEPT).message.content == {"known": 0}
    server.offer(body)
    server.next(Kind.REPLY)
    threads.stop.set()


def test_a_node_stays_within_its_limit_over_all_runs(tmp_path):
    calibrated = {name: value for name, value in PFL.items() if name != "noise_multiplier"}
    terms = loop_terms({**calibrated, "rounds": 1, "epsilon": 2.0})
    limit = Budget(2.2, 1e-3)
    threads, server = started(tmp_path, limit=limit, terms=terms)
    server.offer(opened(server))
    server.next(Kind.REPLY)
    server.end()
    threads.end(ANN)
    spent = threads.node(ANN).certificate["all_runs"]["epsilon"]
    assert 1.9 < spent <= 2.0
    paid = lines(tmp_path)
    again = HandServer(threads, ANN, nonce="another run")
    threads.start_node(ANN)
    again.greet()
    again.offer(opened(again))
    reason = again.next(Kind.REFUSE).message.content["reason"]
    assert "within its own limit" in reason
    assert not any(letter.isdigit() for letter in reason)  # what other runs have spent is not the server's business
    assert any("spent before round 1" in one for one in threads.reasons(ANN))
    assert lines(tmp_path) == paid
    again.end()
    threads.end(ANN)
    assert threads.node(ANN).certificate["run"]["epsilon"] == 0
    assert threads.node(ANN).certificate["all_runs"]["epsilon"] == spent


def test_where_clients_are_protected_every_elapsed_round_is_paid(tmp_path):
    threads, server = started(tmp_path, {**FEDAVG, "rounds": 5})
    body = opened(server)
    server.close(body.step)
    for number in (2, 3):
        step = Step(number, "update")
        server.open(replace(body, step=step))
        server.close(step)
    fourth = replace(body, step=Step(4, "update"))
    server.open(fourth)
    server.offer(replace(fourth, tensors={}), asked=[], offer={})  # it is not asked, and told so
    server.end()
    threads.end(ANN)
    ledger = NodeLedger.open(tmp_path / ANN / "ledger.jsonl", writable=False)
    assert ledger.accounts()["client"].rounds == {1, 2, 3, 4}
    assert threads.node(ANN).certificate["run"]["releases"] == 4
    assert threads.node(ANN).certificate["all_runs"]["whole_client"] == ledger.whole_client(1e-3)
    assert ledger.spent(1e-3) == ledger.whole_client(1e-3) > 0


def test_elapsed_rounds_are_paid_before_the_next_one_is_answered(tmp_path):
    threads, server = started(tmp_path, {**FEDAVG, "rounds": 5})
    body = opened(server)
    server.close(body.step)
    for number in (2, 3):
        server.open(replace(body, step=Step(number, "update")))
        server.close(Step(number, "update"))
    fourth = replace(body, step=Step(4, "update"))
    server.open(fourth)
    server.offer(fourth)
    server.next(Kind.REPLY)
    ledger = NodeLedger.open(tmp_path / ANN / "ledger.jsonl", writable=False)
    assert ledger.accounts()["client"].rounds == {1, 2, 3, 4}
    server.end()
    threads.end(ANN)


def test_a_node_draws_its_own_part(tmp_path):
    terms = loop_terms({**FEDAVG, "rounds": 8}, participation="node")
    threads, server = started(tmp_path, terms=terms)
    kinds = []
    for number in range(1, 9):
        body = replace(server.body(), step=Step(number, "update"))
        server.open(body)
        server.offer(body)
        answer = server.next(Kind.REPLY, Kind.ABSENT)
        kinds.append(answer.message.kind)
        server.offer(body)
        assert server.next(Kind.REPLY, Kind.ABSENT).data == answer.data  # a coin is not thrown twice
        server.close(body.step)
    assert {Kind.REPLY, Kind.ABSENT} == set(kinds)
    server.end()
    threads.end(ANN)
    assert threads.node(ANN).certificate["run"]["releases"] == 8


def test_a_model_that_is_not_finite_is_refused_before_it_is_paid_for(tmp_path):
    threads, server = started(tmp_path)
    body = server.body()
    body = replace(body, tensors={"w": torch.full_like(body.tensors["w"], float("nan"))})
    server.open(body)
    server.offer(body)
    assert "finite" in server.next(Kind.REFUSE).message.content["reason"]
    assert lines(tmp_path) == 1
    threads.stop.set()


def test_a_run_does_not_cost_more_than_its_terms_say(tmp_path):
    threads, server = started(tmp_path, {**PFL, "noise_multiplier": 1.3, "rounds": 1, "epsilon": 1.0})
    server.offer(opened(server))
    assert "as its terms say" in server.next(Kind.REFUSE).message.content["reason"]
    assert lines(tmp_path) == 1
    threads.stop.set()
