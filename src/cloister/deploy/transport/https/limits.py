"""What an HTTPS server takes from whom: bytes, seconds, connections."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import CloisterError, expect

_MEGABYTE = 2**20


@dataclass(frozen=True)
class TlsFiles:
    """The server's certificate (with its chain) and the private key that belongs to it, both in PEM."""

    certificate: Path
    private_key: Path

    def context(self) -> ssl.SSLContext:
        """TLS of the server's side."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.private_key)
        except (OSError, ssl.SSLError) as error:
            raise CloisterError(
                f"Expected a certificate in {self.certificate} and its key in {self.private_key}, found {error}: "
                "`cloister federation init` makes a pair for a trial."
            ) from None
        return context


@dataclass(frozen=True)
class HttpsLimits:
    """The most that one message, one request, one connection and all of them may take."""

    message_bytes: int = 256 * _MEGABYTE
    """A message; `for_model` gives what the messages about a model need."""
    part_bytes: int = 4 * _MEGABYTE
    """The body of a request: a longer message comes in parts, each of which can be sent again."""
    memory_bytes: int = 2048 * _MEGABYTE
    """Messages that are arriving or wait for the server's loop; beyond, nodes are asked to try again later."""
    header_bytes: int = 16 * 1024
    """The headers of a request."""
    header_seconds: float = 10.0
    """The TLS handshake; likewise the headers of a request, from its first byte."""
    body_seconds: float = 120.0
    """The body of a request; likewise a part of a response, until the other side takes it."""
    idle_seconds: float = 75.0
    """A connection without a request."""
    poll_seconds: float = 20.0
    """How long a node's question for messages waits for one."""
    connections: int = 768
    """All connections."""
    strangers: int = 256
    """Connections that have not proved to be a node's; the oldest of them is closed for a new one."""
    node_connections: int = 8
    """Connections of one node."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            expect(value > 0, f"{name} > 0", value, "set a positive limit")
        expect(
            self.message_bytes <= self.memory_bytes,
            "memory_bytes of at least message_bytes",
            self.memory_bytes,
            "raise it, or no message of the largest size could ever arrive",
        )

    @classmethod
    def for_model(cls, parameters: int, nodes: int = 1) -> HttpsLimits:
        """Limits for a model: messages of four numbers of eight bytes for each of its parameters, and a little more.

        >>> HttpsLimits.for_model(11_000_000, nodes=3).message_bytes
        356194304
        """
        message = 32 * parameters + 4 * _MEGABYTE
        default = cls.memory_bytes
        return cls(
            message_bytes=message,
            memory_bytes=max(default, 2 * message),
            connections=max(cls.connections, 8 * nodes),
            strangers=max(cls.strangers, 4 * nodes),
        )
