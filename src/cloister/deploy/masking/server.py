"""The server's side of a masked sum: collect a stage, close it, tell everybody; at the end the sum and nothing else.

    take_keys      ... roster()      everybody's keys
    take_shares    ... mailboxes()   what the others sealed for each
    take_masked    ... survivors()   whose vectors came
    take_consent   ... consents()    enough of their signatures under that list
    take_unmask    ... finish()      the sum

A stage closes when `waiting_for()` is empty, or after a deadline when `enough()`; with fewer, closing raises
`NotOpened`, and when nobody else is waited for the step is over: it was charged, and nothing is released. What comes
from a member is checked when it comes, so that one who sends nonsense is refused alone and counts as lost.

All of it follows from the messages that were taken and from where stages were closed. A server that was killed makes a
new one and takes the stored messages of the members that are named in what it had sent, closing the same stages.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

from cloister.deploy.masking import masks, shamir
from cloister.deploy.masking.agreement import share_commitment
from cloister.deploy.masking.contents import (
    Content,
    Keys,
    expect_distinct,
    raw,
    roster_content,
    roster_digest,
    survivors_text,
)
from cloister.deploy.masking.opening import secrets_of, take_away_own, take_away_shared
from cloister.deploy.masking.session import NotOpened, Session
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON, canonical, digest_of
from cloister.deploy.wire.identity import SIGNATURE_BYTES, Register
from cloister.deploy.wire.refused import Refused, accept_if


class Collecting(IntEnum):
    """What the server waits for."""

    KEYS = 0
    SHARES = 1
    MASKED = 2
    CONSENTS = 3
    UNMASKING = 4
    DONE = 5


class MaskedSum(NamedTuple):
    """What was opened."""

    total: Tensor
    """The sum modulo 2^bits, as signed numbers in int64."""
    survivors: tuple[str, ...]
    """Whose vectors are in it."""
    accused: dict[str, str]
    """Who revealed shares that their owners had not dealt, or could not open what they were dealt, in words."""


class MaskingServer:
    """One session, from the first key to the sum."""

    def __init__(self, session: Session, register: Register) -> None:
        session.expect_in(register)
        self.session, self.register = session, register
        self.stage = Collecting.KEYS
        self.accused: dict[str, str] = {}
        self._came: dict[Collecting, dict[str, str]] = {stage: {} for stage in Collecting}
        self._expected = session.asked
        self._roster: dict[str, Keys] = {}
        self._dealt: dict[str, Content] = {}
        self._members: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()
        self._to_sign = b""
        self._signatures: dict[str, str] = {}
        self._shares: dict[str, dict[str, dict[str, bytes]]] = {}
        self._total = masks.zeros(session.settings.length, session.settings.bits)

    def waiting_for(self) -> tuple[str, ...]:
        """Whose messages of the open stage have not come."""
        return tuple(name for name in self._expected if name not in self._came[self.stage])

    def enough(self) -> bool:
        """Whether the open stage may be closed."""
        if self.stage == Collecting.UNMASKING:
            held = [shares for owners in self._shares.values() for shares in owners.values()]
            return all(len(shares) >= self.session.threshold for shares in held)
        least = self.session.needed if self.stage <= Collecting.MASKED else self.session.threshold
        return len(self._came[self.stage]) >= least

    def take_keys(self, name: str, content: Mapping[str, JSON]) -> None:
        """A member's keys."""
        if self._is_new(Collecting.KEYS, name, content):
            keys = Keys.read(self.session, name, content, self.register)
            expect_distinct({**self._roster, name: keys})
            self._roster[name] = keys
            self._keep(name, content)

    def roster(self) -> Content:
        """Everybody's keys, for all who sent some."""
        self._close(Collecting.KEYS)
        self._roster = {name: self._roster[name] for name in self.session.asked if name in self._roster}
        return roster_content(self.session, self._roster)

    def take_shares(self, name: str, content: Mapping[str, JSON]) -> None:
        """What a member dealt to the others of the roster."""
        if self._is_new(Collecting.SHARES, name, content):
            boxes, commitments = fields.mapping(content, "boxes"), fields.mapping(content, "commitments")
            others = set(self._roster) - {name}
            accept_if(set(boxes) == others, "a box for every other member", sorted(boxes), "deal to the roster")
            accept_if(set(commitments) == set(self._roster), "commitments for all", sorted(commitments), "send them")
            for one in others:
                accept_if(len(raw(boxes, one)) == _BOX_BYTES, f"boxes of {_BOX_BYTES} bytes", one, "seal two shares")
            for pair in commitments.values():
                fits = isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
                accept_if(fits, "two commitments for each", pair, "send them")
            self._dealt[name] = {"boxes": boxes, "commitments": commitments}
            self._keep(name, content)

    def mailboxes(self) -> dict[str, Content]:
        """What was dealt to each of those who dealt."""
        self._members = self._close(Collecting.SHARES)
        return {name: self._mailbox(name) for name in self._members}

    def take_masked(self, name: str, content: Mapping[str, JSON], tensors: Mapping[str, Tensor]) -> None:
        """A masked vector; it is added and not kept."""
        data = tensors.get("masked")
        if data is None:
            raise Refused(f"Expected a masked vector from {name}, found none: send it.")
        if self._is_new(Collecting.MASKED, name, content, data):
            vector = masks.unpacked(data, self.session.settings.length, self.session.settings.bits)
            self._total += vector
            self._keep(name, content, data)

    def survivors(self) -> Content:
        """Whose vectors came, for these to sign."""
        self._survivors = self._close(Collecting.MASKED)
        roster = roster_digest(self.session, self._roster)
        self._to_sign = survivors_text(self.session, roster, self._members, self._survivors)
        return {"survivors": list(self._survivors)}

    def take_consent(self, name: str, content: Mapping[str, JSON]) -> None:
        """A survivor's signature under the list."""
        if self._is_new(Collecting.CONSENTS, name, content):
            fits = self.register.key_of(name).verify(self._to_sign, raw(content, "signature", SIGNATURE_BYTES))
            accept_if(fits, f"a signature of {name} under the list of survivors", "another", "sign what was sent")
            self._signatures[name] = fields.text(content, "signature")
            self._keep(name, content)

    def consents(self) -> Content:
        """As many signatures as it takes, for all survivors: those who did not sign in time may still help to open."""
        self._close(Collecting.CONSENTS)
        self._expected = self._survivors
        lost = [name for name in self._members if name not in self._survivors]
        self._shares = {"seed": {name: {} for name in self._survivors}, "key": {name: {} for name in lost}}
        signers = [name for name in self._survivors if name in self._signatures][: self.session.threshold]
        return {"consents": {name: self._signatures[name] for name in signers}}

    def take_unmask(self, name: str, content: Mapping[str, JSON]) -> None:
        """A survivor's shares; those that their owners did not deal are left out, and the survivor is named."""
        if self._is_new(Collecting.UNMASKING, name, content):
            revealed = {kind: fields.mapping(content, f"{kind}_shares") for kind in self._shares}
            complaints = fields.mapping(content, "complaints")
            for kind, owners in self._shares.items():
                for owner, held in owners.items():
                    if owner in revealed[kind] and (share := self._share(kind, owner, name, revealed[kind])):
                        held[name] = share
            for owner in sorted(set(complaints) & set(self._members)):
                self.accused.setdefault(
                    owner, f"{name} could not use the shares of {owner}: one of the two is at fault"
                )
            self._keep(name, content)

    def finish(self) -> MaskedSum:
        """The sum of the survivors' vectors modulo 2^bits; raises `NotOpened` and names whose fault it is."""
        session, roster = self.session, self._roster
        accept_if(self.stage == Collecting.UNMASKING, "to finish after consents", self.stage.name, "keep the order")
        seeds = secrets_of(session, "seed", roster, self._shares["seed"])
        private = secrets_of(session, "key", roster, self._shares["key"])
        self._close(Collecting.UNMASKING)
        take_away_own(self._total, session, seeds)
        take_away_shared(self._total, session, roster, self._survivors, private)
        total = masks.centered(self._total, session.settings.bits)
        return MaskedSum(total, self._survivors, dict(self.accused))

    def _mailbox(self, name: str) -> Content:
        others = [one for one in self._members if one != name]
        return {
            "members": list(self._members),
            "boxes": {one: self._dealt[one]["boxes"][name] for one in others},
            "commitments": {one: self._dealt[one]["commitments"][name] for one in others},
        }

    def _share(self, kind: str, owner: str, holder: str, revealed: Mapping[str, JSON]) -> bytes | None:
        """A share as its owner dealt it, or None."""
        dealt = self._dealt[owner]["commitments"][holder][("key", "seed").index(kind)]
        try:
            share = raw(revealed, owner, shamir.SHARE_BYTES)
        except Refused:
            share = b""
        if shamir.is_share(share) and share_commitment(self.session, kind, owner, holder, share) == dealt:
            return share
        self.accused[holder] = f"{holder} revealed a share of {owner} that is not the one it was dealt"
        return None

    def _is_new(self, stage: Collecting, name: str, content: Mapping[str, JSON], data: Tensor | None = None) -> bool:
        """Whether a message is to be looked at: the same one again changes nothing, another one is refused."""
        came = self._came[stage].get(name)
        if came is not None:
            accept_if(came == _digest(content, data), f"one answer of {name}", "a second one", "a stage has one")
            return False
        accept_if(self.stage == stage, f"{self.stage.name.lower()}", stage.name.lower(), "this stage is not open")
        accept_if(name in self._expected, "a member that is still in the sum", name, "it was lost before")
        return True

    def _keep(self, name: str, content: Mapping[str, JSON], data: Tensor | None = None) -> None:
        self._came[self.stage][name] = _digest(content, data)

    def _close(self, stage: Collecting) -> tuple[str, ...]:
        """End a stage; whoever answered goes on."""
        accept_if(self.stage == stage, f"to close {self.stage.name.lower()}", stage.name.lower(), "keep the order")
        came = tuple(name for name in self._expected if name in self._came[stage])
        if not self.enough():
            raise NotOpened(
                f"Expected more members to send {stage.name.lower()}, found {len(came)} of {len(self._expected)} "
                f"(threshold {self.session.threshold}, accounted noise of {self.session.settings.least_survivors}): "
                "the sum stays closed.",
                self.waiting_for(),
            )
        self.stage, self._expected = Collecting(stage + 1), came
        return came


_BOX_BYTES = 12 + 2 * shamir.SHARE_BYTES + 16


def _digest(content: Mapping[str, JSON], data: Tensor | None) -> str:
    body = b"" if data is None else data.detach().cpu().contiguous().numpy().tobytes()
    return digest_of(canonical(dict(content)) + b"\0" + digest_of(body).encode())
