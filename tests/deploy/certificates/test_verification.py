"""Certificates and receipts: as they were signed, or it is said; and a server that shows two histories is found."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from dataclasses import replace

import pytest

from cloister.deploy.certificates import words
from cloister.deploy.certificates.chain import Chain, MissingLinks, OtherHistory, signed_head
from cloister.deploy.certificates.node_certificate import node_text
from cloister.deploy.certificates.signed import signed, write_document
from cloister.deploy.certificates.verification import verify
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.messages import Kind
from cloister.errors import BudgetExceededError
from cloister.privacy.accounts import Account
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Gaussian
from deploy.halves.federations import FEDAVG, NAMES, PFL
from deploy.hand_server import HandServer
from deploy.loops import SECRETS, Threads, loop_terms


def files_of(threads):
    server = threads.folder / "server" / "certificate.json"
    nodes = [threads.node(name).folder / kind for name in NAMES for kind in ("certificate.json", "receipt.json")]
    return [server, *nodes]


def run_of(folder, values, **federation):
    threads = Threads(loop_terms({**values, "rounds": 1}, **federation), folder).start()
    threads.end()
    return threads


def test_a_run_is_verified_and_test_mode_is_not_private(tmp_path):
    threads = run_of(tmp_path, FEDAVG)
    found = verify(files_of(threads), threads.terms)
    assert found.good, found.wrong
    assert sum("were told one history" in line for line in found.confirmed) == 10
    assert all("NOT PRIVATE" in note for note in found.notes)
    for file in files_of(threads):
        document = json.loads(file.read_text())
        assert not document.get("private")
        if "limit" in document:  # a node's: of clients that are there or not
            assert any("twice the epsilon" in gap for gap in document["not_covered"])
        if file.name == "certificate.json":
            assert "NOT PRIVATE" in (file.parent / "certificate.txt").read_text()


def test_what_all_rows_together_have_lost_is_rounded_upwards():
    names = ["node", "federation", "terms", "private", "unit", "trusted", "hidden_by_masks", "not_covered", "key"]
    spent = {"runs": 1, "epsilon": 1.0, "delta": 1e-5, "whole_client": 2.00012}
    run = {"name": "r", "epsilon": 1.0, "delta": 1e-5, "releases": 1, "rounds": 1}
    about = {"test_mode": False, "limit": None, "ledger": {"name": "l", "head": "h"}}
    document = {**dict.fromkeys(names, "-"), **about, "history": {"length": 1, "head": "h"}, "run": run}
    assert "together: epsilon 2.001 at delta 1e-05" in node_text({**document, "all_runs": spent})
    assert "together: not bounded" in node_text({**document, "all_runs": {**spent, "whole_client": None}})


def test_without_test_mode_it_is_private_and_says_what_is_spent(tmp_path):
    threads = run_of(tmp_path, PFL, test_mode=False)
    found = verify(files_of(threads), threads.terms)
    assert found.good, found.wrong
    assert not found.notes
    for name in NAMES:
        certificate = threads.node(name).certificate
        assert certificate["private"]
        assert not any("twice the epsilon" in gap for gap in certificate["not_covered"])
        assert certificate["trusted"][0].startswith("nobody")
        assert 0 < certificate["run"]["epsilon"] <= 4.0
        text = (threads.node(name).folder / "certificate.txt").read_text()
        assert "NOT PRIVATE" not in text
    server = threads.server().certificate
    assert server["private"]
    assert server["nodes"]["ann"]["run"] == threads.node("ann").certificate["run"]
    assert "all_runs" not in server["nodes"]["ann"]


def test_whatever_was_changed_is_found(tmp_path):
    threads = run_of(tmp_path, FEDAVG)
    file = threads.folder / "server" / "certificate.json"
    document = json.loads(file.read_text())
    document["price"]["epsilon"] = 0.1
    (tmp_path / "forged.json").write_text(json.dumps(document))
    assert "as it was signed" in verify([tmp_path / "forged.json"]).wrong[0]
    other = loop_terms({**FEDAVG, "rounds": 1, "lr": 0.3})
    assert "it belongs to others" in verify([file], other).wrong[0]
    (tmp_path / "else.json").write_text("{}")
    assert "Expected a certificate or a receipt" in verify([tmp_path / "else.json"]).wrong[0]


def test_a_server_that_shows_two_histories_is_found(tmp_path):
    terms = loop_terms(PFL)
    receipts = []
    for at, name in enumerate(NAMES[:2]):
        threads = Threads(terms, tmp_path)
        server = HandServer(threads, name)
        threads.start_node(name)
        server.greet()
        body = server.body()
        body = replace(body, tensors={"w": body.tensors["w"] + at})  # a model of its own for each node
        server.open(body)
        server.offer(body)
        server.next(Kind.REPLY)
        server.end()
        threads.end(name)
        receipts.append(threads.node(name).folder / "receipt.json")
    assert verify(receipts[:1], terms).good
    (wrong,) = verify(receipts, terms).wrong
    assert wrong.startswith("THE SERVER SHOWED TWO HISTORIES: ann and bob")
    assert "from link 1 on" in wrong


def test_a_chain_is_extended_and_not_rewritten():
    chain = Chain.of([{"link": "run"}, {"link": "opened", "round": 1, "what": "update"}])
    longer = chain.told(1, [*chain.links[1:], {"link": "closed", "round": 1, "what": "update"}])
    assert longer.hashes[:2] == chain.hashes
    assert chain.told(0, chain.links[:1]).head == chain.hashes[0]
    with pytest.raises(MissingLinks):
        chain.told(3, [])
    with pytest.raises(OtherHistory):
        chain.told(1, [{"link": "opened", "round": 2, "what": "update"}])


def resigned(document, key, **changes):
    """A document that its signer made up afterwards."""
    values = {name: value for name, value in document.items() if name not in ("key", "signature")}
    return signed({**values, **changes}, key)


def test_a_history_that_charges_less_than_the_terms_cost_is_found(tmp_path):
    threads = run_of(tmp_path, FEDAVG)
    document = json.loads((threads.folder / "server" / "certificate.json").read_text())
    links = [{**link, "charged": []} if "charged" in link else link for link in document["links"]]
    chain, key = Chain.of(links), SECRETS["server"]
    told = {"links": links, "head": chain.head, "server_signature": signed_head(document["run"], chain, key)}
    for price, word in (
        ({**document["price"], "epsilon": 0.0}, "what the terms say"),
        ({**document["price"], "epsilon": 0.0, "delta": 0.9}, "delta"),
        (None, "Expected a price"),
    ):
        write_document(tmp_path / "lie.json", resigned(document, key, **told, price=price))
        assert verify([tmp_path / "lie.json"]).good  # nothing else is known without the terms
        (wrong,) = verify([tmp_path / "lie.json"], threads.terms).wrong
        assert word in wrong


def test_a_receipt_of_another_server_is_none(tmp_path):
    threads = run_of(tmp_path, FEDAVG)
    document = json.loads((threads.node("ann").folder / "receipt.json").read_text())
    other = PrivateKey.from_seed(b"z" * 32)
    signature = signed_head(document["run"], Chain.of(document["links"]), other)
    made_up = {"server": other.public.text, "server_signature": signature}
    write_document(tmp_path / "lie.json", resigned(document, SECRETS["ann"], **made_up))
    assert "another key" in verify([tmp_path / "lie.json"], threads.terms).wrong[0]


@pytest.mark.slow  # a machine that is busy has to answer before the deadline, which is waited for three times
def test_a_server_calls_nothing_private_of_which_a_node_said_nothing(tmp_path):
    threads = run_of(tmp_path, PFL, test_mode=False, deadline=20.0)
    assert threads.server().certificate["private"]
    for names in (NAMES[:1], NAMES[1:]):
        for name in names:
            (threads.folder / "server" / "statements" / name).unlink()
        threads.start_server()
        threads.end("server")
        assert not threads.server().certificate["private"]
        assert set(names) <= set(threads.server().certificate["without_statement"])


def test_runs_in_test_mode_are_not_counted_as_private_ones(tmp_path):
    run_of(tmp_path, PFL)
    threads = Threads(loop_terms({**PFL, "rounds": 1}, test_mode=False), tmp_path)
    threads.limit = Budget(50.0, 1e-3)
    threads.start_node("ann")
    with pytest.raises(BudgetExceededError, match="in test mode"):
        threads.end("ann")
    shutil.rmtree(tmp_path / "server")
    threads.limit, seen = None, []
    threads.start_server()
    for name in NAMES:
        threads.start_node(name, agree=lambda agreement: seen.append(agreement.spent) or True)
    threads.end()
    certificate = threads.node("ann").certificate
    assert certificate["private"]
    assert certificate["run"]["epsilon"] > 0
    assert certificate["all_runs"]["runs"] == 2
    assert certificate["all_runs"]["epsilon"] is certificate["all_runs"]["whole_client"] is None
    assert any("test mode" in gap for gap in certificate["not_covered"])
    assert seen == [math.inf] * len(NAMES)


def test_of_a_run_whose_end_or_noise_followed_from_releases_the_promise_is_stated():
    account, budget = Account("sample", None, Counter({Gaussian(9.0): 1})), Budget(2.0, 1e-5, 8)
    spent = words.price(account, 1e-5)
    assert words.run_price(account, 1e-5, budget, early=False) == spent
    assert spent["epsilon"] < 1
    for how in ({"early": True}, {"early": False, "adaptive": True}):
        found = words.run_price(account, 1e-5, budget, **how)
        assert (found["epsilon"], found["epsilon_rdp"]) == (2.0, 2.0)
    assert words.run_price(account, 1e-5, None, early=False, adaptive=True)["epsilon"] is None
