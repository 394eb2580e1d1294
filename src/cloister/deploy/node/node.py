"""The node's loop: what it does with each message of the server. It trusts none of them further than it can check.

For an offer, in this order: the signature, the run, the history it was told (which must extend the one it knows, and
have the offer as its newest link), whether the same offer was answered before (then the same bytes go back) or another
one for the same step (then it is refused), the offer itself; then its own ledger is charged, on the disk; then it
computes, stores the reply with its state and notes in the ledger that it did, on the disk, and sends it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from cloister.deploy.certificates.chain import Chain, MissingLinks, expect_signed, offer_digest
from cloister.deploy.events import Events
from cloister.deploy.halves.node_half import NodeHalf, NodeState
from cloister.deploy.halves.steps import OfferBody, ReplyBody, Step
from cloister.deploy.masking import MaskSettings, Session
from cloister.deploy.node.folder import NodeFolder, RunFiles
from cloister.deploy.node.history import expect_history, open_step
from cloister.deploy.node.ledger import BeyondLimit, Paid
from cloister.deploy.node.mail import Mail
from cloister.deploy.node.masked_step import MaskedAnswer, packed_vector, session_of, unpacked_vector
from cloister.deploy.node.payments import Payments
from cloister.deploy.node.replies import StoredReply
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.messages import Kind, Message, Opened
from cloister.deploy.wire.refused import Refused
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.events import NoOp
from cloister.privacy.ledger import Charge

TICK = 0.25
_LAST = 3.0
"""Seconds in which a node waits for the server to confirm its last message."""
_SILENCE = 10.0
"""Seconds without a word of the server, after which a node says that it is there."""


class Node:
    """One run of a federation, as one of its nodes sees it."""

    def __init__(
        self, terms: Terms, run: str, half: NodeHalf, folder: NodeFolder, files: RunFiles, mail: Mail, events: Events
    ) -> None:
        self.terms, self.run, self.half, self.folder, self.files = terms, run, half, folder, files
        self.mail, self.events = mail, events
        self.payments = Payments(run, half, folder.ledger, events)
        newest = files.replies.newest()
        if newest is not None:
            half.restore(newest.content, newest.tensors)
        self._newest = newest
        self._tell_lost()
        self._masked = MaskedAnswer(files.path / "masked")

    def _tell_lost(self) -> None:
        """An answer that left, and is not here: with it went what the local rule keeps from step to step."""
        last, newest = self.folder.ledger.last_stored(self.run), self._newest
        if last is not None and (newest is None or newest.offer != last.offer):
            self.events.tell(
                "stored answer lost",
                "warning",
                round=last.round,
                reason=f"Expected the answer to round {last.round} ({last.what}) in {self.files.replies.folder}, found "
                "none: it is not given again, and what this node kept of earlier rounds begins anew; restore the file.",
            )

    def loop(self, patience: float | None) -> str:
        """Answer offers until the run is over; why it is. After `patience` seconds of silence it gives up."""
        heard = spoke = time.monotonic()
        self.greet()
        self.events.tell("node takes part, and waits for the server")
        while True:
            try:
                opened = self.mail.receive(TICK)
                if opened is not None:
                    heard = spoke = time.monotonic()
                    over = self._handle(opened)
                    if over is not None:
                        return over
            except CloisterError as error:
                self.events.tell("message refused", "warning", reason=str(error))
            now = time.monotonic()
            if now - spoke > _SILENCE:
                spoke = now
                self.greet()
            if patience is not None and now - heard > patience:
                self.payments.settle(self._since_agreed(), open_step(self.files.history.chain))
                return f"the server was silent for {patience:g} seconds"

    def state_spent(self, data: bytes) -> None:
        """Tell the server what was spent, until it has it on its disk; it may be gone by then."""
        until = time.monotonic() + _LAST
        self.mail.send(data)
        while time.monotonic() < until:
            try:
                opened = self.mail.receive(TICK)
            except CloisterError:
                continue
            if opened is not None and opened.message.kind is Kind.RECEIPT:
                return
            if opened is not None and opened.message.kind is Kind.END:
                self.mail.send(data)

    def greet(self) -> None:
        """Say that this node takes part, and how much of the history it knows."""
        content: dict[str, JSON] = {"known": len(self.files.history.chain)}
        self.mail.send(self.mail.sealed(Kind.ACCEPT, self.run, 0, self.terms.digest, content))

    def _handle(self, opened: Opened) -> str | None:
        """Deal with a message; why the run is over, if it is."""
        message = opened.message
        if message.kind is Kind.TERMS:
            return None  # a late answer to the first greeting
        if message.run != self.run:
            raise Refused(f"Expected the run {self.run[:12]}, found {message.run[:12]}: it is left out.")
        if message.kind is Kind.OFFER:
            self._offer(opened)
        elif message.kind is Kind.END:
            self._told(message)
            self._masked.forget()
            self.payments.settle(self._since_agreed(), None)
            return fields.text(message.content, "reason")
        elif message.kind in (Kind.ROSTER, Kind.MAILBOX, Kind.SURVIVORS):
            self._send_masked(message.round, *self._masked.answer(message))
        elif message.kind is Kind.REFUSE:
            reason = fields.text(message.content, "reason")
            self.events.tell("the server refused a reply", "warning", round=message.round, reason=reason)
        return None

    def _told(self, message: Message) -> Chain:
        """The history that a message tells: it extends what this node knows, and the server signed it."""
        links = message.content.get("links")
        if not isinstance(links, list) or not all(isinstance(link, Mapping) and "link" in link for link in links):
            raise Refused("Expected links of the server's history, found something else: it is left out.")
        first, signature = fields.integer(message.content, "first"), fields.text(message.content, "signature")
        try:
            told = self.files.history.chain.told(first, [link for link in links if isinstance(link, Mapping)])
        except MissingLinks:
            self.greet()
            raise
        expect_signed(self.run, told, signature, self.terms.register.server)
        expect_history(told, self.run, self.terms.digest, self.half.steps, self.files.stood)
        self.files.adopt(told, signature)
        return told

    def _since_agreed(self) -> list[dict[str, Any]]:
        """The links of the history that came since the operator agreed."""
        return self.files.history.chain.links[self.files.stood.length :]

    def _offer(self, opened: Opened) -> None:
        message = opened.message
        step = Step(message.round, fields.text(message.content, "what"))
        try:
            told = self._told(message)
            asked = tuple(fields.integers(message.content, "asked"))
            body = OfferBody(step, asked, fields.mapping(message.content, "offer"), message.tensors)
            if self._newest is not None and self._newest.offer == opened.digest:
                self._again(self._newest, told, body)
                return
            self._expect_newest(told, step, body, opened.body_sha256)
            self._masked.forget()
            self.payments.pay_elapsed(self._since_agreed(), step)
            if self.half.client in body.asked:
                self._answer(opened, told, step, body)
            else:
                self.payments.pay_not_asked(step)
        except MissingLinks:
            raise
        except CloisterError as error:
            self.refuse(opened, error)

    def refuse(self, opened: Opened, reason: CloisterError) -> None:
        """Say why nothing is answered. Nothing was computed. What other runs have spent is not the server's business:
        of a limit, it learns that it is reached."""
        message = opened.message
        self.events.tell("offer refused", "warning", round=message.round, reason=str(reason))
        told = reason.told if isinstance(reason, BeyondLimit) else str(reason)
        content: dict[str, JSON] = {"reason": told, "spent": isinstance(reason, BudgetExceededError)}
        self.mail.send(self.mail.sealed(Kind.REFUSE, self.run, message.round, opened.digest, content))

    def _expect_newest(self, told: Chain, step: Step, body: OfferBody, sha256: str) -> None:
        """The offer is the newest link of the history, and what everybody else is told as well."""
        known, newest = self.files.history.chain, told.links[-1]
        if len(told) < len(known):
            raise Refused(f"Expected an offer of a step that is open, found {step}, which is over: it is refused.")
        if (newest["link"], newest.get("round"), newest.get("what")) != ("opened", step.round, step.what):
            raise Refused(f"Expected the history to open {step} last, found another link: the offer is refused.")
        if body.asked and newest.get("offer") != offer_digest(body.content, sha256):
            raise Refused(
                f"Expected in {step} what the server's history says that everybody is told, found something else: the "
                "offer is refused."
            )

    def _computed(self, body: OfferBody) -> tuple[ReplyBody, NodeState]:
        """The reply. Why it cannot be computed may lie in the rows, so that the server is not told."""
        try:
            return self.half.answer(body)
        except CloisterError as error:
            self.events.tell("reply not computed", "warning", round=body.step.round, reason=str(error))
            raise Refused("Expected a reply, found that this node could not compute one: ask its operator.") from error

    def _answer(self, opened: Opened, told: Chain, step: Step, body: OfferBody) -> None:
        """Check, pay, compute, store, send."""
        self._expect_first(opened.digest, step)
        self.half.expect_offer(body)
        self.payments.pay(step, opened.digest, self.half.charges(step, body) or Charge(NoOp()))
        settings = self.half.masked(step)
        if settings is not None:
            self._begin_masked(opened, told, body, settings)
            return
        began = time.monotonic()
        if self.half.participates(step):
            reply, state = self._computed(body)
            computed = time.monotonic() - began
            content: dict[str, JSON] = {"reply": dict(reply.content)}
            tensors = dict(reply.tensors)
            data = self.mail.sealed(Kind.REPLY, self.run, step.round, opened.digest, content, tensors=tensors)
        else:
            state, computed = self.half.node_state, 0.0
            data = self.mail.sealed(Kind.ABSENT, self.run, step.round, opened.digest, {})
        self._store(StoredReply(opened.digest, step.round, step.what, data, state.content(), state.tensors()), state)
        self.mail.send(data)
        self.events.tell("offer answered", round=step.round, what=step.what, seconds=computed)

    def _store(self, reply: StoredReply, state: NodeState) -> None:
        """An answer with the state after it, then that it is there: both are on the disk when this returns, and only
        then may the answer leave."""
        self.files.replies.write(reply)
        self._newest, self.half.node_state = reply, state
        self._note(reply)

    def _note(self, reply: StoredReply) -> None:
        self.folder.ledger.note_stored(Paid(self.run, reply.round, reply.what, reply.offer))

    # Sums under masks.

    def _session(self, told: Chain, body: OfferBody, settings: MaskSettings) -> Session:
        step, register = body.step, self.terms.register
        return session_of(self.run, step.round, step.what, body.asked, register, settings, told.head)

    def _begin_masked(self, opened: Opened, told: Chain, body: OfferBody, settings: MaskSettings) -> None:
        """Compute the vector, keep it and new keys, announce the keys."""
        step, mail = body.step, self.mail
        reply, state = self._computed(body)
        vector = reply.tensors["message"]
        session = self._session(told, body, settings)
        self._masked.begin(opened.digest, session, mail.name, mail.key, self.terms.register, vector)
        data = packed_vector(vector)
        self._store(StoredReply(opened.digest, step.round, step.what, data, state.content(), state.tensors()), state)
        self._send_masked(step.round, *self._masked.keys())
        self.events.tell("offer answered", round=step.round, what=step.what, masked=True)

    def _again(self, stored: StoredReply, told: Chain, body: OfferBody) -> None:
        """The same offer: the same bytes, or the same keys."""
        self._note(stored)  # a node that was killed between the two
        settings = self.half.masked(body.step)
        if settings is None:
            self.mail.send(stored.data)
            return
        if self._masked.offer != stored.offer:
            session, vector = self._session(told, body, settings), unpacked_vector(stored.data)
            self._masked.resume(stored.offer, session, self.mail.name, self.mail.key, self.terms.register, vector)
        self._send_masked(body.step.round, *self._masked.keys())

    def _send_masked(self, round: int, kind: Kind, content: Mapping[str, JSON], tensors: Mapping[str, Tensor]) -> None:
        self.mail.send(self.mail.sealed(kind, self.run, round, self._masked.offer, content, tensors=tensors))

    def _expect_first(self, digest: str, step: Step) -> None:
        before = self.folder.ledger.answered(self.run, step.round, step.what)
        if self.folder.ledger.was_stored(self.payments.paid(step, digest)):
            raise Refused(
                f"Expected the answer to {step} that this node has given, found its file gone: another one would be a "
                "second release for one price, so it is refused; restore the file, and start the node again."
            )
        if before is not None and before != digest:
            raise Refused(
                f"Expected one offer for {step}, found a second one ({digest[:12]}, after {before[:12]}): another "
                "answer would be another release, so it is refused."
            )
