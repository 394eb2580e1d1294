"""A node's part in a masked sum, kept on disk before each answer leaves.

Guarantee: across restarts, one step has one vector, one set of masking keys and one list of survivors. A node that
finds no state for a step in which it had announced keys stays out of it; it never makes a second set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from cloister.deploy.masking import MaskingNode, MaskSettings, Session
from cloister.deploy.stored import write_bytes
from cloister.deploy.wire.bodies import pack, unpack
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.identity import PrivateKey, Register
from cloister.deploy.wire.messages import Kind, Message
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError

Answer = tuple[Kind, Mapping[str, JSON], Mapping[str, Tensor]]


class MaskedAnswer:
    """The sum that is under way, if one is: its file, and the state machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offer = ""
        self._node: MaskingNode | None = None
        self._vector: Tensor | None = None

    def begin(
        self, offer: str, session: Session, name: str, key: PrivateKey, register: Register, vector: Tensor
    ) -> None:
        """New keys for a step, on the disk when this returns."""
        self.offer, self._vector = offer, vector
        self._node = MaskingNode(session, name, key, register)
        self._write()

    def resume(
        self, offer: str, session: Session, name: str, key: PrivateKey, register: Register, vector: Tensor
    ) -> None:
        """Go on with the keys that were announced for a step; refused where they are gone."""
        kept = json.loads(self.path.read_bytes()) if self.path.exists() else {}
        if kept.get("offer") != offer:
            raise CloisterError(
                "Expected the state of this masked sum on the disk, found none: this node stays out of the step, since "
                "a second set of keys could open a second sum."
            )
        self.offer, self._vector = offer, vector
        self._node = MaskingNode(session, name, key, register, kept["state"].encode())

    def _write(self) -> None:
        assert self._node is not None
        kept = {"offer": self.offer, "state": self._node.to_bytes().decode()}
        write_bytes(self.path, json.dumps(kept).encode())

    def keys(self) -> Answer:
        """The first answer."""
        assert self._node is not None
        return Kind.KEYS, self._node.keys(), {}

    def answer(self, message: Message) -> Answer:
        """What is answered to a message of the server's; the state is on the disk when this returns."""
        if self._node is None or self._vector is None or message.answers != self.offer:
            raise Refused(f"Expected a masked sum that is under way, found {message.kind} of another: it is left out.")
        tensors: Mapping[str, Tensor] = {}
        if message.kind is Kind.ROSTER:
            kind, content = Kind.SHARES, self._node.shares(message.content)
        elif message.kind is Kind.MAILBOX:
            kind = Kind.MASKED
            content, tensors = self._node.masked(message.content, self._vector)
        elif "consents" in message.content:
            kind, content = Kind.UNMASK, self._node.unmask(message.content)
        else:
            kind, content = Kind.UNMASK, self._node.agree(message.content)
        self._write()
        return kind, content, tensors

    def forget(self) -> None:
        """The step is over: its secrets are removed."""
        self.offer, self._node, self._vector = "", None, None
        self.path.unlink(missing_ok=True)


def session_of(
    run: str, round: int, what: str, asked: tuple[int, ...], register: Register, settings: MaskSettings, about: str
) -> Session:
    """The session that an offer opens, from the terms and what this node was told."""
    return Session(run, round, what, tuple(register.names[client] for client in asked), settings, about)


def packed_vector(vector: Tensor) -> bytes:
    """What the store of replies keeps of a masked step: the vector itself, which never leaves without its masks."""
    return pack({"vector": vector})


def unpacked_vector(data: bytes) -> Tensor:
    """The vector that was kept."""
    return unpack(data)["vector"]
