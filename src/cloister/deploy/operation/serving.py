"""The server's end of a federation: what listens, where, and with which pages beside the messages."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from cloister.core import Samples
from cloister.deploy.halves.prepared import request_of
from cloister.deploy.operation.status_routes import status_routes
from cloister.deploy.operation.status_source import status_token, status_url
from cloister.deploy.operation.terms_exchange import terms_route
from cloister.deploy.operation.tls_certificates import address_of
from cloister.deploy.terms.terms import Terms
from cloister.deploy.transport.base import ServerTransport
from cloister.deploy.transport.flower.settings import FlowerAddress, flower_server
from cloister.deploy.transport.https import HttpsLimits, HttpsServer, TlsFiles
from cloister.deploy.wire.identity import PrivateKey
from cloister.runs.placement import place


@dataclass(frozen=True)
class Listening:
    """A server that nodes can reach."""

    transport: ServerTransport
    where: str
    """The address at which nodes find it."""
    status: str
    """The address of its status page, for whoever runs it, or the command that shows the same."""


@contextmanager
def listening(
    terms: Terms, folder: Path, tls: TlsFiles, host: str | None, port: int | None, public: Samples | None = None
) -> Iterator[Listening]:
    """Listen where the terms say that nodes look, or elsewhere; the port is free again when the block ends."""
    named, usual = address_of(terms.federation.url or "https://127.0.0.1:8443")
    token = status_token(folder)

    def routes(app: FastAPI) -> None:
        status_routes(folder, token)(app)
        terms_route(terms)(app)

    limits = HttpsLimits.for_model(parameters_of(terms, public), terms.clients)
    at = usual if port is None else port
    transport = HttpsServer(terms.register, host or listen_on(named), at, tls, limits, routes)
    shown = f"[{named}]" if ":" in named else named
    try:
        yield Listening(transport, transport.url, status_url(f"https://{shown}:{transport.port}", token))
    finally:
        transport.close()


@contextmanager
def over_flower(terms: Terms, folder: Path, key: PrivateKey, superlink: FlowerAddress) -> Iterator[Listening]:
    """Serve over a SuperLink of Flower, which listens for us; it has no page for the status."""
    transport = flower_server(superlink, terms.register, key)
    try:
        yield Listening(transport, f"flower://{superlink.address}", f"cloister federation status {folder}")
    finally:
        transport.close()


def listen_on(host: str) -> str:
    """Where to listen so that a host's address is served: a loopback address is nobody else's business.

    >>> listen_on("127.0.0.1"), listen_on("localhost"), listen_on("server.example"), listen_on("10.0.0.7")
    ('127.0.0.1', '127.0.0.1', '0.0.0.0', '0.0.0.0')
    """
    try:
        number = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return "0.0.0.0"
    return str(number) if number.is_loopback else "::" if number.version == 6 else "0.0.0.0"


def parameters_of(terms: Terms, public: Samples | None = None) -> int:
    """How many numbers the model has, which decides how long messages may be."""
    return int(place(request_of(terms, public)).w.numel())
