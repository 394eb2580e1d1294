"""A step that was offered: who is asked, what they are told, and what has come back.

Order, so that a server killed at any instant goes on and nothing leaves unpaid:

1. draw who takes part; charge the ledger and wait for the disk (once: a step has one offer, and pays once)
2. keep the offer on disk; add the link `opened` to the history, on the disk
3. send. A restart finds the offer and sends the same bytes; replies that were kept count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cloister.deploy.certificates.chain import Chain, offer_digest, signed_head
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.halves.steps import OfferBody, ReplyBody, Step
from cloister.deploy.server.folder import ServerFolder
from cloister.deploy.server.members import Members
from cloister.deploy.server.post import Post
from cloister.deploy.wire.bodies import Body
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.messages import Kind, digest_of_sealed
from cloister.errors import BudgetExceededError
from cloister.privacy.ledger import Ledger
from cloister.privacy.pricing import pricing_of


@dataclass
class OpenStep:
    """A step that was offered. `digests` are those of the offers, by node."""

    step: Step
    members: tuple[int, ...]
    body: OfferBody
    first: Mapping[str, int]
    told: Chain
    """The history up to the link that opened the step."""
    packed: Body
    """The tensors of the body, as all offers carry them."""
    names_roster: bool
    """Whether members are told of each other; otherwise an offer names its node alone."""
    restarted: bool
    digests: dict[str, str] = field(default_factory=dict)
    replies: dict[int, ReplyBody] = field(default_factory=dict)
    out: dict[int, str] = field(default_factory=dict)
    """Who will not reply, and why: refused, absent."""

    def pending(self, members: Members) -> set[int]:
        """Whose reply may still come."""
        gone = {member.client for member in members.all if member.state == "refused"}
        return set(self.members) - set(self.replies) - set(self.out) - gone

    def asked(self, client: int) -> tuple[int, ...]:
        """Whom an offer to this node names."""
        if client not in self.members:
            return ()
        return self.members if self.names_roster else (client,)

    def body_for(self, client: int) -> OfferBody:
        """The offer as this node sees it."""
        return replace(self.body, asked=self.asked(client))

    def sealed(self, post: Post, members: Members, client: int, deadline: float) -> bytes:
        """The offer to a node, the same bytes every time. Who is not asked is told that the step is under way."""
        member, asked = members.by_client(client), self.asked(client)
        first = self.first.get(member.name, 0)
        content: dict[str, JSON] = {
            "what": self.step.what,
            "asked": list(asked),
            "offer": dict(self.body.content) if asked else {},
            "first": first,
            "links": list(self.told.links[first:]),
            "signature": signed_head(post.run, self.told, post.key),
            "deadline": deadline,
        }
        body = self.packed if asked else None
        data = post.sealed(member.name, Kind.OFFER, self.step.round, content, body=body)
        self.digests[member.name] = digest_of_sealed(data)
        return data


def open_step(half: ServerHalf, step: Step, folder: ServerFolder, ledger: Ledger, members: Members) -> OpenStep:
    """Draw, charge, keep, link: when this returns, offers may leave. Raises `BudgetExceededError`."""
    kept = folder.read_offer(step, half.progress.w)
    charges = half.charges(step)
    refused = ledger.charge_each(charges, round=step.round, what=step.what, repeatable=True)
    if refused:
        raise BudgetExceededError(next(iter(refused.values())))
    ledger.sync()
    if kept is None:
        drawn = tuple(half.members(step))
        body = half.offer(step, drawn)
        first = {member.name: member.known for member in members.all}
        folder.write_offer(drawn, body, first, half.progress.w)
    else:
        drawn, body, first = kept
    history, packed = folder.history, Body.borrowed(body.tensors)
    if history.chain.step(step.round, step.what) is None:
        cost = [{"event": pricing_of(charge.event).json, "count": charge.count} for charge in charges.values()]
        shown = offer_digest(body.content, packed.sha256)
        history.add({"link": "opened", "round": step.round, "what": step.what, "charged": cost, "offer": shown})
    told = Chain(list(history.chain.links), list(history.chain.hashes))
    return OpenStep(step, drawn, body, first, told, packed, half.masked(step) is not None, restarted=kept is not None)
