"""Where Flower's programs listen, and how they know us."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cloister.deploy.transport.base import NodeTransport, ServerTransport
from cloister.deploy.wire.identity import PrivateKey, PublicKey, Register
from cloister.errors import expect, expect_package

SCHEME = "flower://"


@dataclass(frozen=True)
class FlowerAddress:
    """A SuperLink (for the server) or a SuperNode (for a node).

    `certificate` is a file with the certificate that signed the program's own. Without one the connection is not
    encrypted, which only an address of this machine may be. `secret` is the file that the program was started with as
    `--superexec-auth-secret-file`: without it, everybody who reaches the address can take our place.
    """

    address: str
    certificate: Path | None = None
    secret: Path | None = None

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        expect(bool(host and colon and port.isdigit()), "an address as host:port", self.address, "name both")
        for file in (self.certificate, self.secret):
            expect(file is None or file.is_file(), "a file", file, "name one that is there")
        local = host in ("127.0.0.1", "localhost", "[::1]")
        expect(
            self.certificate is not None or local,
            "a certificate for an address on another machine",
            self.address,
            "name the certificate of its authority",
        )

    @classmethod
    def of_url(cls, url: str, certificate: Path | None = None, secret: Path | None = None) -> FlowerAddress | None:
        """The address that `flower://host:port` names; None for another kind of address.

        >>> FlowerAddress.of_url("https://127.0.0.1:8443") is None
        True
        >>> FlowerAddress.of_url("flower://127.0.0.1:9094").address
        '127.0.0.1:9094'
        """
        return cls(url.removeprefix(SCHEME).rstrip("/"), certificate, secret) if url.startswith(SCHEME) else None


def flower_server(address: FlowerAddress, register: Register, key: PrivateKey) -> ServerTransport:
    """The server's transport over a SuperLink."""
    expect_package("flwr", "for a federation over Flower", "flower")
    from cloister.deploy.transport.flower.server import FlowerServer

    return FlowerServer(address, register, key)


def flower_node(address: FlowerAddress, name: str, key: PrivateKey, server: PublicKey) -> NodeTransport:
    """A node's transport over its SuperNode."""
    expect_package("flwr", "for a federation over Flower", "flower")
    from cloister.deploy.transport.flower.node import FlowerNode

    return FlowerNode(address, name, key, server)
