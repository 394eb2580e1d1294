"""What a node keeps of a masked sum between its messages, and how it lies on the node's disk.

It holds secrets: the file is the node's alone (0600), is written before the message that follows from it leaves, and is
removed when the step is over. A node that starts again goes on from the last state that was written. Going back to an
older one (from a backup) is the one thing that must not happen: a node could then sign a second list of survivors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Self

from cloister.deploy.masking.agreement import new_secret
from cloister.deploy.masking.contents import Content
from cloister.deploy.masking.session import PROTOCOL, Session
from cloister.errors import Corrupted

Shares = dict[str, str]
"""Shares in hexadecimal digits, by the name of the member whose secret they are of."""


class Stage(StrEnum):
    """What a node did last."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    AGREED = "agreed"
    UNMASKED = "unmasked"


@dataclass
class NodeState:
    """Secrets of one session, and what was sent and received."""

    session: str
    name: str
    mask_private: str
    share_private: str
    seed: str
    stage: Stage = Stage.KEYS
    roster: Content = field(default_factory=dict)
    dealt: Content = field(default_factory=dict)
    """What was sent to the others."""
    members: list[str] = field(default_factory=list)
    """Who dealt shares: whose masks are in the vector."""
    mailbox: str = ""
    """Digest of the mailbox that was answered ..."""
    vector: str = ""
    """... and of the masked vector that was sent: another one under the same masks would tell the difference."""
    key_shares: Shares = field(default_factory=dict)
    seed_shares: Shares = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, session: Session, name: str) -> Self:
        """Fresh secrets from the operating system."""
        return cls(session.digest, name, new_secret().hex(), new_secret().hex(), new_secret().hex())

    def to_bytes(self) -> bytes:
        """For the node's disk."""
        return json.dumps({"format": PROTOCOL, **asdict(self)}).encode()

    @classmethod
    def from_bytes(cls, data: bytes, session: Session, name: str) -> Self:
        """The state that was written; of this sum and this node, or none."""
        try:
            found = json.loads(data)
            if found.pop("format") != PROTOCOL or set(found) != {one.name for one in fields(cls)}:
                raise ValueError("other fields")
            state = cls(**{**found, "stage": Stage(found["stage"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupted(f"Expected the state of a masked sum, found {error}: leave this step out.") from None
        if (state.session, state.name) != (session.digest, name):
            raise Corrupted("Expected the state of this masked sum, found that of another: leave this step out.")
        return state
