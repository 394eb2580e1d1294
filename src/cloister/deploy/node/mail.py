"""Messages between a node and its server: signed, sent until they are there, received and verified."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from torch import Tensor

from cloister.deploy.terms.terms import Terms
from cloister.deploy.transport.base import NodeTransport, Unreachable
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.identity import SERVER, PrivateKey
from cloister.deploy.wire.messages import Kind, Message, Opened, open_message, seal
from cloister.deploy.wire.refused import Refused


class Stopped(Exception):
    """Somebody asked the node to stop; it goes on from its folder when it is started again."""


class Mail:
    """Messages between a node and its server."""

    def __init__(self, terms: Terms, name: str, key: PrivateKey, transport: NodeTransport, stop: threading.Event):
        self.terms, self.name, self.key, self.transport, self.stop = terms, name, key, transport, stop

    def sealed(
        self,
        kind: Kind,
        run: str,
        round: int,
        answers: str,
        content: Mapping[str, JSON],
        tensors: Mapping[str, Tensor] | None = None,
    ) -> bytes:
        """A message to the server, as bytes."""
        return seal(Message(kind, run, round, self.name, SERVER, answers, content, tensors or {}), self.key)

    def send(self, data: bytes) -> None:
        """Until the server has it."""
        while not self.stop.is_set():
            try:
                return self.transport.send(data)
            except Unreachable:
                self.stop.wait(0.05)
        raise Stopped

    def receive(self, timeout: float) -> Opened | None:
        """The next message that the server signed for this node; raises `CloisterError` where one is refused."""
        if self.stop.is_set():
            raise Stopped
        data = self.transport.receive(timeout)
        if data is None:
            return None
        opened = open_message(data, self.terms.register)
        message = opened.message
        if message.sender != SERVER or message.recipient != self.name:
            raise Refused(
                f"Expected a message of the server to {self.name}, found one from {message.sender} to "
                f"{message.recipient}: it is left out."
            )
        return opened
