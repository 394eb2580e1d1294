"""The built-in transport with the face of `MemoryNetwork`: a server and nodes on loopback, with TLS and keys."""

from __future__ import annotations

import socket
from pathlib import Path

from cloister.deploy.operation.tls_certificates import write_tls
from cloister.deploy.transport.https import HttpsNode, HttpsServer, TlsFiles
from cloister.deploy.wire.identity import Register
from deploy.loops import SECRETS


class HttpsNetwork:
    """One port for the server, whenever it is there."""

    def __init__(self, register: Register, folder: Path) -> None:
        self.register, self.tls = register, write_tls(folder, ["127.0.0.1"], "test")
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = one.getsockname()[1]
        self._open: list[HttpsNode | HttpsServer] = []

    def server(self) -> HttpsServer:
        """The one before, if there was one, has ended."""
        for one in self._open:
            if isinstance(one, HttpsServer):
                one.close()
        files = TlsFiles(self.tls.certificate, self.tls.key)
        self._open.append(HttpsServer(self.register, "127.0.0.1", self.port, files))
        return self._open[-1]

    def node(self, name: str) -> HttpsNode:
        url = f"https://127.0.0.1:{self.port}"
        self._open.append(HttpsNode(url, name, SECRETS[name], self.tls.authority))
        return self._open[-1]

    def close(self) -> None:
        for one in reversed(self._open):
            one.close()
