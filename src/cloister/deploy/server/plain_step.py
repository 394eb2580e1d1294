"""A step whose replies the server sees one by one: offers out, replies in, and the next model if there are enough."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloister.deploy.halves.steps import ReplyBody
from cloister.deploy.server.open_step import OpenStep
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.messages import Kind, Opened
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.deploy.server.server import Server


def collect(server: Server, opened: OpenStep) -> bool:
    """Send offers, wait for replies, and compute the next model if there are enough."""
    for data in server.folder.read_replies():
        found = server.post.opened(data, server.events)
        if found is not None:
            member = server.members[found.message.sender]
            opened.sealed(server.post, server.members, member.client, server.terms.federation.deadline)
            take(server, opened, found, kept=True)
    server.send_offers(opened)
    deadline = time.monotonic() + server.terms.federation.deadline
    interval = max(0.5, server.terms.federation.deadline / 4)
    again = time.monotonic() + interval
    while opened.pending(server.members) and time.monotonic() < deadline:
        server.listen(min(deadline, again))
        if time.monotonic() > again:
            again = time.monotonic() + interval
            for client in sorted(opened.pending(server.members)):
                server.offer(opened, client)
    for client in opened.pending(server.members):
        server.members.by_client(client).missed += 1
    replies = [opened.replies[client] for client in sorted(opened.replies)]
    if len(replies) < server.half.min_replies(opened.step, opened.body):
        server.half.skip(opened.step)
        return False
    server.half.close(opened.step, opened.body, replies)
    return True


def take(server: Server, opened: OpenStep, found: Opened, kept: bool = False) -> None:
    """What a node says to an offer: a reply that is checked, that it stays away, or that it refuses."""
    message = found.message
    member = server.members[message.sender]
    client, step = member.client, opened.step
    if message.answers != opened.digests.get(member.name) or client not in opened.members:
        server.late(found)
        return
    if client in opened.replies or client in opened.out:
        server.events.tell("repeated answer left out", node=member.name, round=step.round)
        return
    member.known = len(opened.told)
    if message.kind is not Kind.REFUSE:
        member.spent.discard(step.what)
        if not kept:
            server.folder.write_answer(member.name, found.data)
    if message.kind is Kind.REPLY:
        try:
            content = fields.mapping(message.content, "reply")
            reply = ReplyBody(client, content, message.tensors)
            server.half.check(step, opened.body, reply)
        except CloisterError as error:
            _refuse_reply(server, opened, found, str(error))
            return
        if not kept:
            server.folder.write_reply(member.name, found.data)
        opened.replies[client] = reply
        member.replies += 1
        server.status.steps[0].replies += 1
        server.events.tell("reply", node=member.name, round=step.round, what=step.what)
    elif message.kind is Kind.ABSENT:
        opened.out[client] = "absent"
        server.events.tell("node stays away", "debug", node=member.name, round=step.round)
    else:
        opened.out[client] = "refused"
        member.refusals += 1
        server.status.steps[0].refusals += 1
        reason = fields.text(message.content, "reason")
        if message.content.get("spent") is True:
            member.spent.add(step.what)
        server.events.tell("offer refused", "warning", node=member.name, round=step.round, reason=reason)


def _refuse_reply(server: Server, opened: OpenStep, found: Opened, reason: str) -> None:
    """A reply that is not what it may be: left out, and its node told why. The others go on."""
    member, step = server.members[found.message.sender], opened.step
    opened.out[member.client] = "refused by the server"
    server.events.tell("reply refused", "warning", node=member.name, round=step.round, reason=reason)
    content: dict[str, JSON] = {"reason": reason}
    server.post.send(
        member.name, server.post.sealed(member.name, Kind.REFUSE, step.round, content, answers=found.digest)
    )
