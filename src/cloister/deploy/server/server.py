"""The server's loop: greet nodes, run step after step, end. All it knows is on disk before anything leaves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cloister.deploy.certificates.chain import signed_head
from cloister.deploy.certificates.node_certificate import spent_in
from cloister.deploy.certificates.words import delta_of, finite
from cloister.deploy.events import Events
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.halves.steps import UPDATE, Step
from cloister.deploy.server.folder import ServerFolder
from cloister.deploy.server.masked_step import clear_masked, run_masked
from cloister.deploy.server.members import Member, Members
from cloister.deploy.server.open_step import OpenStep, open_step
from cloister.deploy.server.plain_step import collect, take
from cloister.deploy.server.post import Post
from cloister.deploy.server.status import Status
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.messages import Kind, Opened
from cloister.errors import CloisterError
from cloister.privacy.unit import ProtectedUnit

_TICK = 0.25
"""Seconds after which a server that waits looks up, to see whether it is to stop."""


_MOST_BESIDE = 8 * 2**20
"""Bytes that a message may have beside its numbers."""


class Stopped(Exception):
    """Somebody asked the server to stop; it goes on from its folder when it is started again."""


class Server:
    """One run of a federation, as its server sees it."""

    def __init__(
        self, terms: Terms, half: ServerHalf, folder: ServerFolder, post: Post, events: Events, stop: threading.Event
    ) -> None:
        self.terms, self.half, self.folder, self.post, self.events, self.stop = terms, half, folder, post, events, stop
        self.members = Members.of(terms.register)
        self.ledger = folder.open_ledger(half.budgets)
        post.most_bytes = _MOST_BESIDE + 16 * half.progress.w.numel()
        self.status = Status()
        self.current: OpenStep | None = None
        self.over = ""
        """Why the run ended, once it has."""
        self.on_masked: Callable[[Opened], None] | None = None
        self._begin()

    def _begin(self) -> None:
        """The first link, or what the files say of where the run stands."""
        history = self.folder.history
        if not history.chain.links:
            history.add(
                {
                    "link": "run",
                    "run": self.folder.run,
                    "terms": self.terms.digest,
                    "nonce": self.folder.nonce,
                    "test_mode": self.terms.test_mode,
                }
            )
        kept = self.folder.read_checkpoint()
        if kept is not None:
            progress, tensors, link = kept
            self.half.restore(progress, tensors)
            if history.chain.step(link["round"], link["what"], "closed") is None:
                history.add(link)
                self.folder.drop_replies()
        for name, data in self.folder.read_signed("accepted").items():
            if self.post.opened(data, self.events) is not None:
                self.members[name].state = "accepted"

    # Messages.

    def listen(self, until: float) -> None:
        """Wait for a message until a time of `time.monotonic`, and deal with it."""
        if self.stop.is_set():
            raise Stopped
        opened = self.post.receive(max(0.0, min(_TICK, until - time.monotonic())), self.events)
        if opened is not None:
            try:
                self._handle(opened)
            except CloisterError as error:
                self.events.tell("message refused", "warning", node=opened.message.sender, reason=str(error))
        self.status.write(self)

    def _handle(self, opened: Opened) -> None:
        message = opened.message
        if message.kind is Kind.HELLO:
            self._greet(opened)
        elif message.kind is Kind.ACCEPT:
            self._accept(opened)
        elif message.kind is Kind.STATEMENT:
            self._statement(opened)
        elif message.kind is Kind.REFUSE and message.answers == self.terms.digest:
            self._refused_terms(opened)
        elif self.current is None:
            self.events.tell("message without a step", "warning", node=message.sender, kind=str(message.kind))
        elif message.answers not in (self.current.digests.get(message.sender), ""):
            self.late(opened)
        elif message.kind in (Kind.REPLY, Kind.ABSENT, Kind.REFUSE):
            take(self, self.current, opened)
        elif self.on_masked is not None:
            self.on_masked(opened)
        else:
            self.late(opened)

    def late(self, opened: Opened) -> None:
        message = opened.message
        self.events.tell(
            "message refused",
            "warning",
            node=message.sender,
            round=message.round,
            reason=f"Expected an answer to the step that is open, found a late, repeated or unknown one "
            f"({message.kind}): it is left out.",
        )

    def links_for(self, known: int) -> dict[str, JSON]:
        """The history from a link on, signed."""
        chain = self.folder.history.chain
        first = min(max(known, 0), len(chain))
        links: list[JSON] = list(chain.links[first:])
        return {"first": first, "links": links, "signature": signed_head(self.post.run, chain, self.post.key)}

    def _greet(self, opened: Opened) -> None:
        """Tell a node the terms, the run, and how long its history is."""
        member = self.members[opened.message.sender]
        content: dict[str, JSON] = {
            "terms": self.terms.to_json(),
            "nonce": self.folder.nonce,
            "length": len(self.folder.history.chain),
            "head": self.folder.history.chain.head,
            "answer": self.folder.read_answer(member.name).hex(),
        }
        member.spent.clear()  # another process, perhaps with another limit
        self.post.send(member.name, self.post.sealed(member.name, Kind.TERMS, 0, content, answers=opened.digest))
        if member.state == "not heard of":
            member.state = "asked"
            self.events.tell("node came", node=member.name)

    def _accept(self, opened: Opened) -> None:
        message = opened.message
        member = self.members[message.sender]
        if message.answers != self.terms.digest:
            raise CloisterError(
                f"Expected {member.name} to accept the terms {self.terms.digest[:12]}, found "
                f"{message.answers[:12]}: give it the terms of this run."
            )
        if member.state not in ("accepted", "done"):
            self.folder.write_signed("accepted", member.name, opened.data)
            member.state = "accepted"
            self.events.tell("node accepted", node=member.name)
        member.known = fields.integer(message.content, "known")
        if self.over:
            self.say_end(member)
        elif self.current is not None and self._waits_for(self.current, member):
            self.offer(self.current, member.client)

    def _waits_for(self, opened: OpenStep, member: Member) -> bool:
        """Whether the node has something to learn of the step that is open."""
        told = member.client in opened.members or self.half.unit is ProtectedUnit.CLIENT
        return told and member.client not in opened.replies and member.client not in opened.out

    def say_end(self, member: Member) -> None:
        """Tell a node that the run is over."""
        content: dict[str, JSON] = {"reason": self.over, **self.links_for(member.known)}
        self.post.send(member.name, self.post.sealed(member.name, Kind.END, 0, content))

    def _refused_terms(self, opened: Opened) -> None:
        member = self.members[opened.message.sender]
        member.state = "refused"
        reason = fields.text(opened.message.content, "reason")
        self.events.tell("node refused the terms", "warning", node=member.name, reason=reason)

    def _statement(self, opened: Opened) -> None:
        member = self.members[opened.message.sender]
        member.epsilon = spent_in(opened.message.content)
        self.folder.write_signed("statements", member.name, opened.data)
        member.state = "done"
        self.post.send(member.name, self.post.sealed(member.name, Kind.RECEIPT, answers=opened.digest))
        self.events.tell("node stated what it has spent", node=member.name)

    # The run.

    def gather(self, wait: float | None) -> None:
        """Until every node has accepted or refused; after `wait` seconds, enough of them do."""
        enough = self.terms.federation.fewest
        began = time.monotonic()
        self.status.write(self, now=True)
        while self.members.undecided:
            if wait is not None and time.monotonic() - began > wait and len(self.members.accepted) >= enough:
                break
            self.listen(time.monotonic() + _TICK)
        if len(self.members.accepted) < enough:
            raise CloisterError(
                f"Expected at least {enough} nodes to accept the terms, found {len(self.members.accepted)}: talk to "
                "their operators, or propose other terms."
            )

    def run_step(self, step: Step) -> None:
        """One step: offered, answered, closed."""
        opened = open_step(self.half, step, self.folder, self.ledger, self.members)
        self.current = opened
        self.status.phase = "running"
        self.status.begin(step.round, step.what, len(opened.members))
        self.events.tell("step opened", round=step.round, what=step.what, asked=len(opened.members))
        settings = self.half.masked(step)
        try:
            released = run_masked(self, opened, settings) if settings is not None else collect(self, opened)
        finally:
            self.on_masked = None
        self._close(opened, released)

    def too_few(self, step: Step) -> str:
        """Why this training step and all after it can have no more replies than too few, if that is so: nodes that
        have spent their budgets refuse for good, unless their operators start them again with another limit."""
        fewest, members = self.half.fewest(step), self.members.all
        left = sum(member.state != "refused" and step.what not in member.spent for member in members)
        if step.what != UPDATE or left >= fewest:
            return ""
        return (
            f"Expected at least {fewest} of {len(members)} nodes with something left to spend, found {left}: the run "
            f"ends before round {step.round} of {self.terms.rounds}"
        )

    def send_offers(self, opened: OpenStep) -> None:
        """To everybody who is asked; where clients are protected, the others are told that a round passes."""
        everybody = self.half.unit is ProtectedUnit.CLIENT
        for member in self.members.all:
            told = everybody or member.client in opened.members
            if told and member.state != "refused" and member.client not in opened.replies:
                self.offer(opened, member.client)

    def offer(self, opened: OpenStep, client: int) -> None:
        """The offer to a node; what else was on its way to it is outdated."""
        name = self.members.by_client(client).name
        data = opened.sealed(self.post, self.members, client, self.terms.federation.deadline)
        self.post.transport.clear(name)
        self.post.send(name, data)

    def _close(self, opened: OpenStep, released: bool) -> None:
        """The model and the link are on the disk before anything else leaves."""
        step = opened.step
        link: dict[str, Any] = {"link": "closed", "round": step.round, "what": step.what, "released": released}
        progress = self.half.progress
        self.folder.write_checkpoint(progress.content(), progress.tensors(), link)
        self.folder.history.add(link)
        self.folder.drop_replies()
        clear_masked(self.folder.path)
        self.current = None
        self.status.end("released" if released else "charged, not released")
        self.events.tell(
            "step closed",
            round=step.round,
            what=step.what,
            replies=len(opened.replies),
            released=released,
            seconds=self.status.steps[0].seconds,
        )
        self.status.write(self, now=True)

    def budget(self) -> dict[str, Any]:
        """What was spent by the server's own account, for the status."""
        unit = ProtectedUnit.CLIENT
        delta = delta_of(self.terms)
        kept = "server" if self.half.unit is unit else "node"
        limit = self.ledger.budgets.get(unit.value)
        spent = finite(self.ledger.epsilon(unit, delta)) if kept == "server" else None
        target = None if limit is None else limit.epsilon
        return {"unit": self.half.unit.value, "spent": spent, "limit": target, "delta": delta, "kept_by": kept}
