"""What a transport does: it carries bytes between the server and its nodes.

A message that was sent arrives at least once, in any order, perhaps more than once, and who sent it is known by its
signature alone. What a server has queued is lost when it ends: its loop sends again what its journal holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cloister.errors import CloisterError


class Unreachable(CloisterError):
    """The server did not take a message in the time given; it may be sent again later."""


class ServerTransport(Protocol):
    """The server's end; all of it may be called from any thread."""

    def send(self, node: str, data: bytes) -> None:
        """Queue a message for a node; never waits for the node."""

    def receive(self, timeout: float) -> bytes | None:
        """The next message of any node, or None when none came within so many seconds."""

    def clear(self, node: str) -> None:
        """Forget what is queued for a node: it is outdated."""

    def seen(self) -> Mapping[str, float]:
        """When each node was last heard of (`time.time()`); a node that never was is missing."""

    def close(self) -> None:
        """Stop; messages that were not delivered are lost, and `receive` gives None at once."""


class NodeTransport(Protocol):
    """A node's end; `send` and `receive` may be called from different threads."""

    def send(self, data: bytes) -> None:
        """Give a message to the server; returns when the server has it.

        Tries again, and goes on where a large upload broke off. Raises `Unreachable` when the server could not be
        reached for long, and `Refused` when it does not take the message.
        """

    def receive(self, timeout: float) -> bytes | None:
        """The next message of the server, or None when none came, or the server was away, for so many seconds."""

    def close(self) -> None:
        """Stop; `receive` gives None at once."""
