"""Memory does what every transport does, and the harm that is asked for."""

from __future__ import annotations

import pytest

from cloister.deploy.transport.memory import Delivery, Faults, MemoryNetwork
from deploy.transport.conformance import TransportConformance
from deploy.transport.loopback import REGISTER


class _Memory:
    large = 100_000

    def __init__(self):
        self._network = MemoryNetwork(REGISTER)

    def server(self):
        return self._network.server()

    def node(self, name, patience=1.0):
        return self._network.node(name)


class TestMemory(TransportConformance):
    @pytest.fixture
    def network(self):
        return _Memory()


def arrived(faults, count=200):
    network = MemoryNetwork(REGISTER, faults)
    server, node = network.server(), network.node("a")
    for i in range(count):
        node.send(i.to_bytes(4))
    came = []
    while (data := server.receive(0.0)) is not None:
        came.append(data)
    return came


def test_faults_do_what_they_say_and_the_same_each_time():
    sent = [i.to_bytes(4) for i in range(200)]
    lost, repeated = arrived(Faults(lose=0.2)), arrived(Faults(repeat=0.2))
    changed, reordered = arrived(Faults(change=0.2)), arrived(Faults(reorder=0.2))
    assert 120 < len(lost) < 190
    assert set(lost) < set(sent)
    assert set(repeated) == set(sent)
    assert len(repeated) > 220
    assert 10 < sum(a != b for a, b in zip(sent, changed, strict=True)) < 70
    assert sorted(reordered) == sent != reordered
    assert arrived(Faults(3, lose=0.2, change=0.1)) == arrived(Faults(3, lose=0.2, change=0.1))
    assert arrived(Faults(4, lose=0.2)) != arrived(Faults(3, lose=0.2))


def test_a_delayed_message_arrives_later():
    network = MemoryNetwork(
        REGISTER, lambda sender, recipient, data: [Delivery(data, delay=0.2 if data == b"1" else 0.0)]
    )
    server, node = network.server(), network.node("a")
    node.send(b"1")
    node.send(b"2")
    assert server.receive(60.0) == b"2"
    assert server.receive(60.0) == b"1"


def test_a_hook_knows_whose_message_it_is():
    calls = []
    network = MemoryNetwork(REGISTER, lambda *call: calls.append(call) or [])
    network.server().send("b", b"x")
    network.node("a").send(b"y")
    assert calls == [("server", "b", b"x"), ("a", "server", b"y")]
