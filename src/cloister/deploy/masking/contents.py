"""What members sign and show one another through the server: keys, the roster, lists of survivors.

The messages that carry these are signed too, but a node never sees another node's message: what it must be able to
check without trusting the server carries a signature of its own, by the key in the register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloister.deploy.masking.agreement import is_usable
from cloister.deploy.masking.session import PROTOCOL, Session
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON, canonical, digest_of
from cloister.deploy.wire.identity import SIGNATURE_BYTES, PrivateKey, Register
from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import shown

Content = dict[str, JSON]


@dataclass(frozen=True)
class Keys:
    """What a member announces for one session."""

    mask_key: bytes
    share_key: bytes
    seed_commitment: bytes
    signature: bytes

    @classmethod
    def signed(cls, session: Session, name: str, key: PrivateKey, mask: bytes, share: bytes, commitment: bytes) -> Keys:
        """The keys with their owner's signature."""
        return cls(mask, share, commitment, key.sign(_keys_text(session, name, mask, share, commitment)))

    def content(self) -> Content:
        """As it travels."""
        return {field: getattr(self, field).hex() for field in _KEY_FIELDS}

    @classmethod
    def of(cls, content: Mapping[str, JSON]) -> Keys:
        """As they came, unchecked but for their sizes."""
        return cls(**{field: raw(content, field, size) for field, size in _KEY_FIELDS.items()})

    @classmethod
    def read(cls, session: Session, name: str, content: Mapping[str, JSON], register: Register) -> Keys:
        """The keys of a member of the session; refuses strangers, and what the member did not sign for it."""
        accept_if(name in session.asked, "keys of a node that is asked", name, "it has no part in this sum")
        keys = cls.of(content)
        text = _keys_text(session, name, keys.mask_key, keys.share_key, keys.seed_commitment)
        accept_if(
            register.key_of(name).verify(text, keys.signature),
            f"keys that {name} signed for this step, offer and cohort",
            "another signature",
            "whoever was told something else cannot take part in the same sum",
        )
        usable = is_usable(keys.mask_key) and is_usable(keys.share_key)
        accept_if(usable, f"public keys of {name} to agree with", "points of small order", "make new keys")
        return keys


_KEY_FIELDS = {"mask_key": 32, "share_key": 32, "seed_commitment": 32, "signature": SIGNATURE_BYTES}


def _keys_text(session: Session, name: str, mask: bytes, share: bytes, commitment: bytes) -> bytes:
    return canonical([PROTOCOL, "keys", session.digest, name, mask.hex(), share.hex(), commitment.hex()])


def roster_content(session: Session, keys: Mapping[str, Keys]) -> Content:
    """Everybody's keys, in the order in which they were asked."""
    return {"members": [{"name": name, **keys[name].content()} for name in session.asked if name in keys]}


def read_roster(session: Session, content: Mapping[str, JSON], register: Register) -> dict[str, Keys]:
    """The members' keys: signed by each of them, large enough a group, no name and no key twice."""
    entries = content.get("members")
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise Refused(f"Expected a list of members with their keys, found {shown(entries)}: the server must send one.")
    names = read_group(session, [entry.get("name") for entry in entries], session.asked, "the roster")
    found = {name: Keys.read(session, name, entry, register) for name, entry in zip(names, entries, strict=True)}
    expect_distinct(found)
    return found


def expect_distinct(keys: Mapping[str, Keys]) -> None:
    """Nobody announces a key that somebody else, or the same member, announces for something else."""
    owner: dict[bytes, str] = {}
    for name, one in keys.items():
        for key in (one.mask_key, one.share_key, one.seed_commitment):
            other = owner.get(key)
            accept_if(other is None, "keys that nobody else announces", f"one of {other} and {name}", "make new keys")
            owner[key] = name


def read_group(session: Session, names: JSON, within: Sequence[str], what: str) -> tuple[str, ...]:
    """Names in the one order they have, each once, all within a group, and enough of them to go on."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Refused(f"Expected {what} as a list of names, found {shown(names)}: the server must send one.")
    given = set(names)
    strangers = sorted(given - set(within))
    accept_if(not strangers, f"{what} to name members only", strangers, "they have no part in this sum")
    ordered = [name for name in session.asked if name in given]
    accept_if(names == ordered, f"{what} in the order of the register, each name once", names, "sort it")
    settings = session.settings
    accept_if(
        len(names) >= session.needed,
        f"{what} to have {session.needed} members at least (threshold {session.threshold}, accounted noise of "
        f"{settings.least_survivors})",
        len(names),
        "too few to open a sum of",
    )
    return tuple(names)


def roster_digest(session: Session, roster: Mapping[str, Keys]) -> str:
    """The digest of everybody's keys: members that were shown different ones do not sign the same text."""
    return digest_of(canonical(roster_content(session, roster)))


def survivors_text(session: Session, roster: str, members: Sequence[str], survivors: Sequence[str]) -> bytes:
    """What members sign before a sum is opened: whose keys, who dealt shares, whose vectors are in the sum."""
    return canonical([PROTOCOL, "survivors", session.digest, roster, list(members), list(survivors)])


def raw(content: Mapping[str, JSON], field: str, size: int | None = None) -> bytes:
    """Bytes, written in hexadecimal digits, of the size that is wanted."""
    text = fields.text(content, field)
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    fits = found.hex() == text and (size is None or len(found) == size)
    accept_if(
        fits, f"{'bytes' if size is None else f'{size} bytes'} in hexadecimal digits as {field!r}", text, "send them"
    )
    return found
