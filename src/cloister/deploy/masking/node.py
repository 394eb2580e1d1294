"""A node's side of a masked sum: five answers, each given once, and what it refuses to do.

| the server sends | the node answers | what it refuses                                                               |
|------------------|------------------|-------------------------------------------------------------------------------|
| (the offer)      | `keys`           |                                                                               |
| roster           | `shares`         | unknown or repeated names or keys, keys not signed for this sum, too few      |
| mailbox          | `masked`         | dealers out of the roster, too few, a second mailbox or vector under one mask |
| survivors        | `agree`          | names that did not deal, too few (less noise than accounted), a second list   |
| consents         | `unmask`         | fewer than `threshold` signatures under this very list                        |

Guarantee: a node reveals its share of a member's own mask or of its key, never both, whatever it is sent and in
whatever order. The same question gets the same answer again; another one at a stage that was answered is refused.

Keep `to_bytes` (it holds secrets) on the disk before an answer leaves, and go on from it after a restart. A node that
lost its state has no part in the step any more: it does not answer, and makes no second keys for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cloister.deploy.masking import agreement, masks, shamir
from cloister.deploy.masking.agreement import KeyPair, share_commitment
from cloister.deploy.masking.contents import (
    Content,
    Keys,
    raw,
    read_group,
    read_roster,
    roster_digest,
    survivors_text,
)
from cloister.deploy.masking.node_state import NodeState, Stage
from cloister.deploy.masking.session import Session
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON, canonical, digest_of
from cloister.deploy.wire.identity import SIGNATURE_BYTES, PrivateKey, Register
from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import expect

_ORDER = tuple(Stage)


class MaskingNode:
    """One member in one session."""

    def __init__(
        self, session: Session, name: str, key: PrivateKey, register: Register, state: bytes | None = None
    ) -> None:
        session.expect_in(register)
        expect(name in session.asked, "a node that is asked", name, "others have no part in this sum")
        fits = register.key_of(name) == key.public
        expect(fits, f"the key of {name} in the register", key.public.text, "use the key that the terms name")
        self.session, self.name, self.register = session, name, register
        self._key = key
        self._state = NodeState.new(session, name) if state is None else NodeState.from_bytes(state, session, name)
        self._mask_pair = KeyPair(bytes.fromhex(self._state.mask_private))
        self._share_pair = KeyPair(bytes.fromhex(self._state.share_private))
        self._own = self._announced()
        self._members = {entry["name"]: Keys.of(entry) for entry in self._state.roster.get("members", ())}

    def to_bytes(self) -> bytes:
        """The state, secrets included, for the node's own disk."""
        return self._state.to_bytes()

    @property
    def stage(self) -> Stage:
        """What was done last."""
        return self._state.stage

    def keys(self) -> Content:
        """First answer: public keys for this sum, signed."""
        return self._own.content()

    def shares(self, roster: Mapping[str, JSON]) -> Content:
        """Second answer: shares of this node's secrets, sealed for every other member of the roster."""
        members = read_roster(self.session, roster, self.register)
        accept_if(members.get(self.name) == self._own, "this node's own keys in the roster", self.name, "send them")
        if self._reached(Stage.SHARES):
            self._expect_same("roster", canonical(self._state.roster) == canonical(dict(roster)))
            return self._state.dealt
        dealt = self._deal(members)
        self._members = members
        self._state.roster, self._state.dealt, self._state.stage = dict(roster), dealt, Stage.SHARES
        return dealt

    def masked(self, mailbox: Mapping[str, JSON], vector: Tensor) -> tuple[Content, dict[str, Tensor]]:
        """Third answer: the vector under this node's own mask, and one mask for every other member that dealt."""
        self._expect_stage(Stage.SHARES, "mailbox")
        settings, state = self.session.settings, self._state
        whole = not (vector.dtype.is_floating_point or vector.dtype.is_complex)
        expect(whole, "whole numbers to mask", str(vector.dtype), "round them to a grid first")
        found = tuple(vector.shape)
        expect(found == (settings.length,), f"{settings.length} numbers to mask", found, "as the offer's step has")
        digest = digest_of(canonical(dict(mailbox)))
        if self._reached(Stage.MASKED):
            self._expect_same("mailbox", digest == state.mailbox)
        else:
            self._read_mailbox(mailbox)
        data = masks.packed(self._masked(vector), settings.bits)
        sent = digest_of(data.numpy().data)
        if self._reached(Stage.MASKED):
            expect(sent == state.vector, "the vector that was masked before", "another", "send the stored reply again")
        state.mailbox, state.vector = digest, sent
        self._advance(Stage.MASKED)
        return {}, {"masked": data}

    def agree(self, survivors: Mapping[str, JSON]) -> Content:
        """Fourth answer: the signature under the list of those whose vectors are in the sum."""
        self._expect_stage(Stage.MASKED, "list of survivors")
        state = self._state
        listed = read_group(self.session, survivors.get("survivors"), state.members, "the list of survivors")
        accept_if(self.name in listed, "this node among the survivors", listed, "its vector came too late")
        if self._reached(Stage.AGREED):
            self._expect_same("list of survivors", list(listed) == state.survivors)
        state.survivors = list(listed)
        self._advance(Stage.AGREED)
        return {"signature": self._key.sign(self._survivors_text()).hex()}

    def unmask(self, consents: Mapping[str, JSON]) -> Content:
        """Fifth answer: shares that take away survivors' own masks, and masks shared with members that were lost."""
        self._expect_stage(Stage.AGREED, "consents")
        self._read_consents(consents)
        state = self._state
        lost = [name for name in state.members if name not in state.survivors]
        self._advance(Stage.UNMASKED)
        return {
            "seed_shares": {name: state.seed_shares[name] for name in state.survivors if name in state.seed_shares},
            "key_shares": {name: state.key_shares[name] for name in lost if name in state.key_shares},
            "complaints": dict(state.complaints),
        }

    def _announced(self) -> Keys:
        state, session = self._state, self.session
        commitment = bytes.fromhex(agreement.commitment(session, ["seed", self.name], bytes.fromhex(state.seed)))
        public = self._mask_pair.public, self._share_pair.public
        return Keys.signed(session, self.name, self._key, *public, commitment)

    def _deal(self, members: Mapping[str, Keys]) -> Content:
        """Shares of the key behind this node's masks and of its own mask's seed; its own share stays here."""
        session, state = self.session, self._state
        points = {name: session.point_of(name) for name in members}
        secrets = {"key": bytes.fromhex(state.mask_private), "seed": bytes.fromhex(state.seed)}
        split = {kind: shamir.split(one, session.threshold, list(points.values())) for kind, one in secrets.items()}
        boxes, commitments = {}, {}
        for name, point in points.items():
            pair = {kind: split[kind][point] for kind in ("key", "seed")}
            commitments[name] = [share_commitment(session, kind, self.name, name, one) for kind, one in pair.items()]
            if name == self.name:
                state.key_shares[name], state.seed_shares[name] = (one.hex() for one in pair.values())
                continue
            data, public = b"".join(pair.values()), members[name].share_key
            boxes[name] = agreement.sealed(session, self._share_pair, self.name, name, public, data).hex()
        return {"boxes": boxes, "commitments": commitments}

    def _read_mailbox(self, mailbox: Mapping[str, JSON]) -> None:
        """Keep the shares of everybody who dealt; whose shares are not what was committed to is told later."""
        session, state = self.session, self._state
        within = list(self._members)
        members = read_group(session, mailbox.get("members"), within, "the list of those who dealt shares")
        accept_if(self.name in members, "this node among those who dealt shares", members, "its shares came too late")
        boxes, commitments = fields.mapping(mailbox, "boxes"), fields.mapping(mailbox, "commitments")
        others = set(members) - {self.name}
        accept_if(others == set(boxes) == set(commitments), "shares of all who dealt", sorted(boxes), "send them")
        opened, complaints = {}, {}
        for name in sorted(others):
            try:
                opened[name] = self._open(name, boxes, commitments[name])
            except Refused as refusal:
                complaints[name] = str(refusal)
        state.members, state.complaints = list(members), complaints
        for name, (key_share, seed_share) in opened.items():
            state.key_shares[name], state.seed_shares[name] = key_share.hex(), seed_share.hex()

    def _open(self, dealer: str, boxes: Mapping[str, JSON], commitments: JSON) -> tuple[bytes, bytes]:
        session, public = self.session, self._members[dealer].share_key
        data = agreement.opened(session, self._share_pair, dealer, self.name, public, raw(boxes, dealer))
        pair = data[: shamir.SHARE_BYTES], data[shamir.SHARE_BYTES :]
        uses = zip(("key", "seed"), pair, strict=True)
        found = [share_commitment(session, kind, dealer, self.name, share) for kind, share in uses]
        fits = all(shamir.is_share(one) for one in pair) and found == commitments
        accept_if(fits, f"the shares that {dealer} committed to", "others", "it must deal what it commits to")
        return pair

    def _masked(self, vector: Tensor) -> masks.Vector:
        session, state = self.session, self._state
        total = masks.residues(vector, session.settings.bits)
        masks.add_mask(total, agreement.own_mask_key(session, self.name, bytes.fromhex(state.seed)))
        here = session.point_of(self.name)
        for name in state.members:
            if name != self.name:
                public = self._members[name].mask_key
                key = agreement.pair_mask_key(session, self._mask_pair, self.name, name, public)
                masks.add_mask(total, key, subtract=session.point_of(name) < here)
        return total

    def _read_consents(self, content: Mapping[str, JSON]) -> None:
        consents, session = fields.mapping(content, "consents"), self.session
        signers = [name for name in session.asked if name in consents]
        strangers = sorted(set(consents) - set(self._state.survivors))
        accept_if(not strangers, "signatures of survivors only", strangers, "leave them out")
        wanted = f"the list of survivors signed by {session.threshold} of them at least"
        accept_if(len(signers) >= session.threshold, wanted, len(signers), "wait for more of them")
        text = self._survivors_text()
        for name in signers:
            fits = self.register.key_of(name).verify(text, raw(consents, name, SIGNATURE_BYTES))
            accept_if(fits, f"a signature of {name} under this list of survivors", "another", "show all the same list")

    def _survivors_text(self) -> bytes:
        state = self._state
        return survivors_text(self.session, roster_digest(self.session, self._members), state.members, state.survivors)

    def _reached(self, stage: Stage) -> bool:
        return _ORDER.index(self._state.stage) >= _ORDER.index(stage)

    def _advance(self, stage: Stage) -> None:
        if not self._reached(stage):
            self._state.stage = stage

    def _expect_stage(self, stage: Stage, what: str) -> None:
        accept_if(self._reached(stage), f"the stages before the {what}", self._state.stage.value, "keep their order")

    def _expect_same(self, what: str, same: bool) -> None:
        accept_if(same, f"the {what} that was answered before", "another one", "a stage is answered once")
