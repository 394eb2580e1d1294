"""Servers and nodes over HTTPS on loopback that end with their test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from cloister.deploy.transport.https import HttpsLimits, HttpsNode, HttpsServer, TlsFiles
from deploy.transport.loopback import KEYS, REGISTER, make_certificate


@cache
def certificate() -> TlsFiles:
    """One certificate for all tests of a process."""
    folder = tempfile.TemporaryDirectory()
    _FOLDERS.append(folder)
    return make_certificate(Path(folder.name))


_FOLDERS: list[tempfile.TemporaryDirectory] = []  # removed when the process ends


class Https:
    """A server on a free port, which a second server takes again, and its nodes."""

    large = 3_000_000

    def __init__(self, limits: HttpsLimits) -> None:
        self.tls, self.limits, self.port = certificate(), limits, 0
        self._open: list[Any] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def server(self, **options: Any) -> HttpsServer:
        options = {"limits": self.limits} | options
        server = HttpsServer(REGISTER, "127.0.0.1", self.port, self.tls, **options)
        self.port = server.port
        self._open.append(server)
        return server

    def node(self, name: str, patience: float = 60.0, key: Any = None, **options: Any) -> HttpsNode:
        node = HttpsNode(self.url, name, key or KEYS[name], self.tls.certificate, patience=patience, **options)
        self._open.append(node)
        return node


@contextmanager
def https_network(**limits: Any) -> Iterator[Https]:
    """A network of its own for a test."""
    network = Https(HttpsLimits(**({"part_bytes": 1_000_000} | limits)))
    try:
        yield network
    finally:
        for one in reversed(network._open):
            one.close()
