"""The server's letters: signed, sent, received and verified; what is refused is told to whoever keeps the log."""

from __future__ import annotations

from collections.abc import Mapping

from cloister.deploy.events import Events
from cloister.deploy.transport.base import ServerTransport
from cloister.deploy.wire.bodies import Body
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.identity import SERVER, PrivateKey, Register
from cloister.deploy.wire.messages import Kind, Message, Opened, open_message, seal
from cloister.errors import CloisterError


class Post:
    """Messages between the server and its nodes, in one run."""

    def __init__(self, run: str, key: PrivateKey, register: Register, transport: ServerTransport) -> None:
        self.run, self.key, self.register, self.transport = run, key, register, transport
        self.most_bytes: int | None = None

    def sealed(
        self,
        node: str,
        kind: Kind,
        round: int = 0,
        content: Mapping[str, JSON] | None = None,
        body: Body | None = None,
        answers: str = "",
    ) -> bytes:
        """A message to a node, as bytes; `body` are its tensors, if it has some."""
        message = Message(kind, self.run, round, SERVER, node, answers, content or {})
        return seal(message, self.key, body)

    def send(self, node: str, data: bytes) -> None:
        """On its way."""
        self.transport.send(node, data)

    def receive(self, timeout: float, events: Events) -> Opened | None:
        """The next message that its sender signed; None where none came, or it was refused."""
        data = self.transport.receive(timeout)
        return None if data is None else self.opened(data, events)

    def opened(self, data: bytes, events: Events) -> Opened | None:
        """A message of a node to this server, in this run; None where it is refused."""
        try:
            opened = open_message(data, self.register, self.most_bytes)
            message = opened.message
            if message.sender == SERVER or message.recipient != SERVER:
                raise CloisterError(
                    f"Expected a message of a node to the server, found one from {message.sender} to "
                    f"{message.recipient}: it is left out."
                )
            if message.run != self.run and message.kind is not Kind.HELLO:
                raise CloisterError(
                    f"Expected a message of the run {self.run[:12]}, found one of {message.run[:12]} from "
                    f"{message.sender}: it is left out."
                )
        except CloisterError as error:
            events.tell("message refused", "warning", reason=str(error))
            return None
        return opened
