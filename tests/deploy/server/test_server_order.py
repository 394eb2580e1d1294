"""In which order a server works: charged, kept and in the history, on the disk, before an offer leaves; and the next
model with the link that closes the step before the next offer does."""

from __future__ import annotations

from cloister.deploy.certificates.chain import read_chain
from cloister.deploy.server.post import Post
from cloister.deploy.stored import read_stored
from cloister.deploy.wire.messages import Kind, open_message
from cloister.privacy.ledger import Ledger
from deploy.halves.federations import FEDAVG
from deploy.loops import Threads, loop_terms
from deploy.synced import Synced


def test_an_offer_leaves_when_all_that_it_rests_on_is_on_the_disk(tmp_path, monkeypatch):
    terms, synced, seen = loop_terms({**FEDAVG, "rounds": 2}), Synced(monkeypatch), []
    place, send = tmp_path / "server", Post.send

    def send_kept(post, node, data):
        message = open_message(data, terms.register).message
        if message.kind is Kind.OFFER:
            number = message.round
            assert Ledger.open(place / "ledger.jsonl", writable=False).has_paid("client", number)
            chain = read_chain(place / "history.jsonl")
            assert chain.step(number, "update") is not None
            assert read_stored(place / "offer")[0]["round"] == number
            files = ["ledger.jsonl", "history.jsonl", "offer"]
            if number > 1:
                assert chain.step(number - 1, "update", "closed") is not None
                assert read_stored(place / "checkpoint")[0]["link"]["round"] == number - 1
                files.append("checkpoint")
            seen.append((number, [synced.whole(place / file) for file in files]))
        return send(post, node, data)

    monkeypatch.setattr(Post, "send", send_kept)
    threads = Threads(terms, tmp_path).start()
    threads.end()
    assert {number for number, _ in seen} == {1, 2}
    assert all(all(files) for _, files in seen), seen
