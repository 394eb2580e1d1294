"""A server whose offers a test writes by hand, with the key of the real one."""

from __future__ import annotations

import time
from typing import Any

from cloister.deploy.certificates.chain import Chain, offer_digest, signed_head
from cloister.deploy.halves import OfferBody, ServerHalf, Step
from cloister.deploy.wire.bodies import Body
from cloister.deploy.wire.identity import SERVER
from cloister.deploy.wire.messages import Kind, Message, Opened, digest_of_sealed, open_message, seal
from deploy.loops import SECRETS, WITHIN, Threads


class HandServer:
    """Greets one node, and sends what a test wants."""

    def __init__(self, threads: Threads, node: str, nonce: str | None = None) -> None:
        self.terms, self.node, self.client = threads.terms, node, threads.terms.federation.client_of(node)
        self.transport = threads.network.server()
        self.nonce = nonce or self.terms.new_nonce()
        self.run = self.terms.run_of(self.nonce)
        self.half = ServerHalf.of(self.terms, self.run)
        self.chain = Chain()
        self.chain.add({"link": "run", "run": self.run, "terms": self.terms.digest, "nonce": self.nonce})

    def send(self, kind: Kind, round: int = 0, content: Any = None, tensors: Any = None, answers: str = "") -> str:
        message = Message(kind, self.run, round, SERVER, self.node, answers, content or {}, tensors or {})
        data = seal(message, SECRETS["server"])
        self.transport.send(self.node, data)
        return digest_of_sealed(data)

    def greet(self, **lies: Any) -> None:
        self.next(Kind.HELLO)
        stands = {"length": len(self.chain), "head": self.chain.head}
        self.send(Kind.TERMS, content={"terms": self.terms.to_json(), "nonce": self.nonce, **stands, **lies})
        self.next(Kind.ACCEPT)

    def next(self, *kinds: Kind) -> Opened:
        until = time.monotonic() + WITHIN
        while time.monotonic() < until:
            data = self.transport.receive(1.0)
            if data is not None:
                opened = open_message(data, self.terms.register)
                if opened.message.kind in kinds:
                    return opened
        raise AssertionError(f"no {kinds} came")

    def body(self, step: Step | None = None) -> OfferBody:
        step = step or self.half.next_step()
        assert step is not None
        return self.half.offer(step, tuple(range(self.terms.clients)))

    def open(self, body: OfferBody) -> None:
        shown = offer_digest(body.content, Body.borrowed(body.tensors).sha256)
        step = body.step
        self.chain.add({"link": "opened", "round": step.round, "what": step.what, "charged": [], "offer": shown})

    def close(self, step: Step) -> None:
        self.chain.add({"link": "closed", "round": step.round, "what": step.what, "released": True})

    def offer(self, body: OfferBody, chain: Chain | None = None, first: int = 0, **changes: Any) -> str:
        """Send an offer to the node; its digest."""
        told = chain or self.chain
        content = {
            "what": body.step.what,
            "asked": [self.client],
            "offer": dict(body.content),
            "first": first,
            "links": told.links[first:],
            "signature": signed_head(self.run, told, SECRETS["server"]),
            **changes,
        }
        return self.send(Kind.OFFER, body.step.round, content, body.tensors)

    def end(self) -> None:
        signature = signed_head(self.run, self.chain, SECRETS["server"])
        links = {"first": 0, "links": self.chain.links, "signature": signature}
        self.send(Kind.END, content={"reason": "over", **links})
        stated = self.next(Kind.STATEMENT)
        self.send(Kind.RECEIPT, answers=stated.digest)  # which a node waits for
