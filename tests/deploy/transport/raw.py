"""Requests that no honest client would make: bytes over TLS, and a proxy that cuts connections."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
from contextlib import suppress

from cloister.deploy.transport.https.client import Client, TryAgain
from cloister.deploy.transport.https.sessions import authorization
from deploy.transport.conformance import LONG
from deploy.transport.https_network import Https
from deploy.transport.loopback import KEYS


def connect(network: Https, receive_buffer: int | None = None) -> ssl.SSLSocket:
    """A TLS connection."""
    context = ssl.create_default_context(cafile=network.tls.certificate)
    plain = socket.socket()
    if receive_buffer is not None:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    plain.settimeout(LONG)
    plain.connect(("127.0.0.1", network.port))
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the other side closes."""
    came = b""
    try:
        while chunk := connection.recv(65536):
            came += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    connection.close()
    return came


def status_and_error(response: bytes) -> tuple[int, str]:
    """The status of a response and its sentence."""
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


class Member:
    """A node that signs whatever it is told to, or lets others see what it signs."""

    def __init__(self, network: Https, name: str) -> None:
        self.name, self.key = name, KEYS[name]
        self._client = Client(network.url, name, self.key, network.tls.certificate, LONG)
        self.session = self._open()
        self._client.close()
        self._numbers = itertools.count(1000)

    def _open(self) -> str:
        for _ in range(10):  # a server that waits for nobody may have closed the connection of a slow machine
            with suppress(TryAgain):
                return self._client.session().name
        raise AssertionError("no session")

    def header(self, method: str, target: str) -> str:
        """A signed header line."""
        number = next(self._numbers)
        return f"Authorization: {authorization(self.session, number, method, target.encode(), self.key)}\r\n"

    def head(self, method: str, target: str, *lines: str) -> bytes:
        """The head of a signed request."""
        return head(method, target, self.header(method, target).strip(), *lines)


def head(method: str, target: str, *lines: str) -> bytes:
    """The head of a request."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


class CuttingProxy:
    """A proxy on a port of its own that cuts connections after so many bytes up or down, then lets the rest pass."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._target, self._cuts = port, cuts
        self.passed = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            budget = [self._cuts.pop(0) if self._cuts else 10**12]
            other = socket.create_connection(("127.0.0.1", self._target))
            for one, two in [(accepted, other), (other, accepted)]:
                threading.Thread(target=self._pump, args=(one, two, budget), daemon=True).start()

    def _pump(self, one: socket.socket, two: socket.socket, budget: list[int]) -> None:
        try:
            while chunk := one.recv(65536):
                two.sendall(chunk)
                self.passed += len(chunk)
                budget[0] -= len(chunk)
                if budget[0] < 0:
                    break
        except OSError:
            pass
        for end in (one, two):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
