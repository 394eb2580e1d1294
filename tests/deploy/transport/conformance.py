"""What every transport does, as one class of tests.

A transport's tests are a subclass with a fixture `network` that gives a `Network`:

    class TestMemory(TransportConformance):
        @pytest.fixture
        def network(self): ...
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

import pytest

from cloister.deploy.transport.base import NodeTransport, ServerTransport, Unreachable
from cloister.errors import CloisterError
from deploy.transport.loopback import REGISTER

LONG = 60.0
"""Seconds after which a test gives up; none of them waits so long."""


class Network(Protocol):
    """A server with the nodes of `REGISTER`; `server` may be called again once the one before was closed."""

    large: int
    """Bytes of a message that is large for this transport."""

    def server(self) -> ServerTransport: ...

    def node(self, name: str, patience: float = LONG) -> NodeTransport: ...


def collect(receive: Callable[[float], bytes | None], wanted: set[bytes]) -> list[bytes]:
    """Receive until all that is wanted came at least once."""
    came: list[bytes] = []
    until = time.monotonic() + LONG
    while not wanted <= set(came) and time.monotonic() < until:
        data = receive(1.0)
        came += [] if data is None else [data]
    return came


def together(*works: Callable[[], object]) -> None:
    """Do all of it at once, each in a thread; fails if one did."""
    errors: list[BaseException] = []

    def run(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)


class TransportConformance:
    """At least once, in any order, whole; nobody waits for ever."""

    def test_bytes_arrive_as_they_were_both_ways(self, network):
        server, node = network.server(), network.node("a")
        data = bytes(range(256)) * 5
        node.send(data)
        assert server.receive(LONG) == data
        server.send("a", data + b"back")
        assert node.receive(LONG) == data + b"back"

    def test_large_messages_arrive_both_ways(self, network):
        server, node = network.server(), network.node("a")
        data = bytes(range(251)) * (network.large // 251)
        together(lambda: node.send(data), lambda: collect(server.receive, {data}))
        server.send("a", data[1:])
        assert node.receive(LONG) == data[1:]

    def test_all_messages_of_all_nodes_arrive(self, network):
        server = network.server()
        nodes = {name: network.node(name) for name in REGISTER.names}
        up = {name: {f"{name} {i}".encode() for i in range(20)} for name in nodes}
        down = {name: {f"to {name} {i}".encode() for i in range(20)} for name in nodes}
        came: dict[str, list[bytes]] = {}

        def node_works(name: str) -> None:
            for data in sorted(up[name]):
                nodes[name].send(data)
            came[name] = collect(nodes[name].receive, down[name])

        def server_works() -> None:
            for name in nodes:
                for data in sorted(down[name]):
                    server.send(name, data)
            came["server"] = collect(server.receive, set().union(*up.values()))

        together(server_works, *(lambda name=name: node_works(name) for name in nodes))
        assert set(came["server"]) == set().union(*up.values())
        for name in nodes:
            assert set(came[name]) == down[name]  # and nothing of what was for others

    def test_a_message_waits_for_its_node(self, network):
        server = network.server()
        server.send("b", b"early")
        assert network.node("b").receive(LONG) == b"early"

    def test_who_waits_gets_what_comes(self, network):
        server, node = network.server(), network.node("a")
        node.send(b"here")
        assert server.receive(LONG) == b"here"
        came: list[bytes | None] = []
        waiting = threading.Thread(target=lambda: came.append(node.receive(LONG)), daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        server.send("a", b"late")
        waiting.join(LONG)
        assert came == [b"late"]

    def test_nothing_is_none(self, network):
        server, node = network.server(), network.node("a")
        assert server.receive(0.0) is None
        assert server.receive(0.05) is None
        assert node.receive(0.0) is None
        assert node.receive(0.05) is None

    def test_what_was_cleared_does_not_arrive(self, network):
        server = network.server()
        server.send("a", b"old")
        server.send("b", b"other")
        server.clear("a")
        server.send("a", b"new")
        assert network.node("a").receive(LONG) == b"new"
        assert network.node("b").receive(LONG) == b"other"

    def test_the_server_knows_whom_it_heard(self, network):
        server, before = network.server(), time.time()
        assert server.seen() == {}
        network.node("a").send(b"hello")
        server.receive(LONG)
        assert set(server.seen()) == {"a"}
        assert before - 1 <= server.seen()["a"] <= time.time() + 1

    def test_nobody_else_can_be_sent_to(self, network):
        with pytest.raises(CloisterError, match="not in the register"):
            network.server().send("mallory", b"data")

    def test_a_server_that_comes_back_finds_its_nodes(self, network):
        server, node = network.server(), network.node("a")
        node.send(b"first")
        assert server.receive(LONG) == b"first"
        server.close()
        assert node.receive(0.05) is None
        server = network.server()
        together(lambda: node.send(b"second"), lambda: collect(server.receive, {b"second"}))
        server.send("a", b"third")
        assert collect(node.receive, {b"third"})[-1] == b"third"

    def test_a_server_that_is_away_is_unreachable(self, network):
        server, node = network.server(), network.node("a", patience=0.1)
        server.close()
        with pytest.raises(Unreachable, match="Expected"):
            node.send(b"data")

    def test_who_closed_waits_no_longer(self, network):
        server, node = network.server(), network.node("a")
        node.send(b"here")
        server.receive(LONG)
        came: list[object] = []
        waiting = [
            threading.Thread(target=lambda: came.append(node.receive(LONG)), daemon=True),
            threading.Thread(target=lambda: came.append(server.receive(LONG)), daemon=True),
        ]
        for thread in waiting:
            thread.start()
            thread.join(0.1)
        start = time.monotonic()
        node.close()
        server.close()
        for thread in waiting:
            thread.join(LONG)
        assert came == [None, None]
        assert time.monotonic() - start < LONG / 2
        assert node.receive(LONG) is None
        assert server.receive(LONG) is None
