"""HTTPS does what every transport does."""

from __future__ import annotations

import ssl

import pytest

from deploy.transport.conformance import LONG, TransportConformance
from deploy.transport.https_network import https_network


@pytest.fixture
def network():
    with https_network() as network:
        yield network


class TestHttps(TransportConformance):
    pass


def test_a_node_keeps_its_connection(network, monkeypatch):
    """A TLS handshake for every message, and for every question that found none, would cost more than the messages."""
    handshakes, shake = [], ssl.SSLSocket.do_handshake
    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", lambda *given: (handshakes.append(1), shake(*given))[1])
    server, node = network.server(), network.node("a")
    for number in range(5):
        assert node.receive(0.01) is None
        node.send(b"up %d" % number)
        assert server.receive(LONG) == b"up %d" % number
        server.send("a", b"down")
        assert node.receive(LONG) == b"down"
    assert sum(handshakes) == 1
