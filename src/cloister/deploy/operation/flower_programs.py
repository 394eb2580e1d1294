"""Flower's programs on one machine, for trials, tests and measurements.

A SuperLink with TLS and node authentication, and a SuperNode for each node, on loopback; executors need a secret. At
real sites these programs are services of their own: docs/federation.md says how they are started.
"""

from __future__ import annotations

import os
import secrets
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cloister.deploy.operation.tls_certificates import write_tls
from cloister.deploy.transport.flower.settings import FlowerAddress
from cloister.errors import CloisterError

HOST = "127.0.0.1"
_BIN = Path(sys.executable).parent
_SECONDS_TO_START, _SECONDS_TO_END = 180.0, 10.0


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _write_secret(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)


class FlowerNetwork:
    """Flower's programs; a node of Cloister sits at each SuperNode."""

    def __init__(self, folder: Path, names: Iterable[str], database: bool = False) -> None:
        self.folder, self.names = folder.resolve(), tuple(names)
        self._database = ["--database", "link.sqlite"] if database else []
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("link", *self.names)}
        self._tls = write_tls(self.folder / "tls", [HOST], "trial")
        self._secret = self.folder / "secret"
        _write_secret(self._secret, secrets.token_bytes(32))
        self.link = FlowerAddress(f"{HOST}:{self._ports['link']}", self._tls.authority, self._secret)

    def start(self) -> None:
        """All of them; the SuperLink learns the keys of the SuperNodes."""
        self.start_link()
        for name in self.names:
            self._register(name)
            self._start_node(name)
        for name in self.names:
            self._wait(name, f"http://{self.at(name).address}/health", None)

    def at(self, name: str) -> FlowerAddress:
        """The SuperNode of a node: on the node's own machine, so without TLS."""
        return FlowerAddress(f"{HOST}:{self._ports[name]}", None, self._secret)

    def start_link(self) -> None:
        """The SuperLink, for the first time or again."""
        files = ["--ssl-ca-certfile", str(self._tls.authority)]
        files += ["--ssl-certfile", str(self._tls.certificate), "--ssl-keyfile", str(self._tls.key)]
        self._start("link", "flower-superlink", *files, "--enable-supernode-auth", *self._database)
        self._wait("link", f"https://{self.link.address}/health", self.link.certificate)

    def _start_node(self, name: str) -> None:
        link = ["--superlink", self.link.address, "--root-certificates", str(self._tls.authority)]
        self._start(name, "flower-supernode", *link, "--auth-supernode-private-key", f"{name}.key")

    def kill(self, name: str) -> None:
        """End a program at once."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all programs."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(timeout=_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def log(self, name: str) -> str:
        """What a program said."""
        return (self.folder / f"{name}.log").read_text()

    def _register(self, name: str) -> None:
        """What `flwr supernode register` does."""
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        key = ec.generate_private_key(ec.SECP384R1())
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        _write_secret(self.folder / f"{name}.key", private)
        client = ControlHttpClient.from_server_address(self.link.address, False, str(self.link.certificate), [])
        client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key.public_key())))
        client.close()

    def _start(self, name: str, program: str, *options: str) -> None:
        place = ["--host", HOST, "--port", str(self._ports[name]), "--isolation", "process"]
        place += ["--superexec-auth-secret-file", str(self._secret)]
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(self.folder)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(_BIN / program), *place, *options],
                cwd=self.folder,
                env={**os.environ, **quiet},
                stdout=log,
                stderr=log,
            )

    def _wait(self, name: str, url: str, authority: Path | None) -> None:
        verify = False if authority is None else ssl.create_default_context(cafile=str(authority))
        until = time.monotonic() + _SECONDS_TO_START
        while time.monotonic() < until and self._processes[name].poll() is None:
            try:
                httpx.get(url, verify=verify, timeout=2)
                return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise CloisterError(f"Expected that {name} starts, found that it did not: {self.log(name)[-500:]}")


@contextmanager
def flower_network(folder: Path, names: Iterable[str], database: bool = False) -> Iterator[FlowerNetwork]:
    """The programs, until the block ends; with a database the SuperLink knows its nodes after a restart."""
    network = FlowerNetwork(folder, names, database)
    try:
        network.start()
        yield network
    finally:
        network.close()
