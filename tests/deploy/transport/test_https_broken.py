"""Connections break, servers end, memory is short, messages grow old: what HTTPS does then."""

from __future__ import annotations

import random
import ssl
import threading

import httpx
import pytest

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.https import HttpsLimits, HttpsNode, HttpsServer, TlsFiles
from cloister.deploy.transport.https import sessions as sessions_module
from cloister.deploy.transport.https.arrivals import Upload
from cloister.deploy.transport.https.connections import Connections
from cloister.deploy.transport.https.refusals import Refusal, RefusalLog
from cloister.deploy.transport.https.sessions import Sessions, answer_to, authorization
from cloister.deploy.wire.identity import Register
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError
from deploy.transport.conformance import LONG, together
from deploy.transport.https_network import https_network
from deploy.transport.loopback import KEYS, make_certificate
from deploy.transport.raw import CuttingProxy

DATA = random.Random(0).randbytes(8_000_000)


@pytest.fixture
def network():
    with https_network() as network:
        yield network


@pytest.fixture
def through_proxy(network):
    """A server, and a function that gives a node whose first connections are cut after so many bytes."""
    server, proxies = network.server(), []

    def node(cuts):
        proxies.append(CuttingProxy(server.port, cuts))
        url = f"https://127.0.0.1:{proxies[-1].port}"
        return HttpsNode(url, "a", KEYS["a"], network.tls.certificate), proxies[-1]

    yield server, node
    for proxy in proxies:
        proxy.close()


def test_an_upload_goes_on_where_it_broke_off(through_proxy):
    server, node_with = through_proxy
    node, proxy = node_with([2_500_000, 2_500_000])
    together(lambda: node.send(DATA))
    assert server.receive(LONG) == DATA
    assert server.receive(0.0) is None
    assert 8_000_000 < proxy.passed < 12_000_000  # twice at most a part, and what was on its way
    node.close()


def test_a_download_goes_on_where_it_broke_off(through_proxy):
    server, node_with = through_proxy
    node, proxy = node_with([2_500_000, 2_500_000])
    server.send("a", DATA)
    assert node.receive(LONG) == DATA
    assert 8_000_000 < proxy.passed < 12_000_000
    node.close()


def test_a_server_that_restarts_gets_the_upload_from_its_beginning(network):
    server, node = network.server(), network.node("a")
    sending = threading.Thread(target=lambda: node.send(DATA), daemon=True)
    sending.start()
    sending.join(0.02)
    server.close()
    server = network.server()
    if not sending.is_alive():  # the first server had it all
        node.send(DATA)
    assert server.receive(LONG) == DATA
    sending.join(LONG)


def test_a_message_comes_again_to_a_node_that_ended_before_it_asked_for_the_next(network):
    server = network.server()
    server.send("a", b"one")
    server.send("a", b"two")
    assert network.node("a").receive(LONG) == b"one"
    node = network.node("a")
    assert [node.receive(LONG), node.receive(LONG), node.receive(0.0)] == [b"one", b"two", None]


def test_a_message_that_is_cleared_while_it_is_fetched_gives_way_to_the_next(network, monkeypatch):
    server, node = network.server(), network.node("a")
    fetch = node._download

    def fetch_late(name, incoming):
        server.clear("a")
        server.send("a", b"new")
        return fetch(name, incoming)

    monkeypatch.setattr(node, "_download", fetch_late)
    server.send("a", DATA)
    assert node.receive(LONG) == b"new"


def test_when_memory_is_full_nodes_try_again_until_there_is_some():
    with https_network(message_bytes=1_500_000, memory_bytes=2_000_000) as network:
        server, hasty, patient = network.server(), network.node("a", patience=0.1), network.node("b")
        hasty.send(DATA[:1_500_000])
        for length in (900_000, 1_500_000):
            with pytest.raises(Unreachable, match="memory for a message"):
                hasty.send(DATA[:length])
        sending = threading.Thread(target=lambda: patient.send(DATA[:1_400_000]), daemon=True)
        sending.start()
        assert server.receive(LONG) == DATA[:1_500_000]
        sending.join(LONG)
        assert server.receive(LONG) == DATA[:1_400_000]


def test_messages_that_are_too_long_are_refused_by_both_sides():
    with https_network(message_bytes=1000, part_bytes=2000) as network:
        server, node = network.server(), network.node("a", most_bytes=100)
        for length in (1001, 2001):
            with pytest.raises(Refused, match="at most 1000 bytes"):
                node.send(bytes(length))
        with pytest.raises(CloisterError, match="for_model"):
            server.send("a", bytes(1001))
        server.send("a", bytes(101))
        server.send("a", b"next")
        with pytest.raises(Refused, match="at most 100 bytes"):
            node.receive(LONG)
        assert node.receive(LONG) == b"next"


def test_a_certificate_that_is_not_the_trusted_one_is_said_at_once(network, tmp_path):
    network.server()
    other = make_certificate(tmp_path)
    node = HttpsNode(network.url, "a", KEYS["a"], other.certificate)
    with pytest.raises(Refused, match="trusted certificate"):
        node.send(b"data")
    with pytest.raises(CloisterError, match="ask the server's operator"):
        HttpsNode(network.url, "a", KEYS["a"], tmp_path / "none")
    node.close()


def test_a_server_that_cannot_listen_says_why(network, tmp_path):
    server = network.server()
    register = Register(KEYS["server"].public, {"a": KEYS["a"].public})
    with pytest.raises(CloisterError, match="choose another port"):
        HttpsServer(register, "127.0.0.1", server.port, network.tls)
    with pytest.raises(CloisterError, match="federation init"):
        HttpsServer(register, "127.0.0.1", 0, TlsFiles(tmp_path / "none", tmp_path / "none"))


def test_health_and_other_routes_need_no_session(network):
    network.server(extra_routes=lambda app: app.add_api_route("/status", lambda: {"nodes": 3}))
    with httpx.Client(
        base_url=network.url, verify=ssl.create_default_context(cafile=network.tls.certificate)
    ) as client:
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/status").json() == {"nodes": 3}
        assert client.get("/docs").status_code == client.get("/openapi.json").status_code == 404
        assert client.post("/health", content=b"x").status_code == 405


def test_an_old_challenge_and_old_numbers_are_refused(monkeypatch):
    monkeypatch.setattr(sessions_module, "_REMEMBERED", 16)
    now = [1000.0]
    sessions = Sessions(Register(KEYS["server"].public, {"a": KEYS["a"].public}), clock=lambda: now[0])
    challenge = sessions.challenge("a")
    now[0] += 100
    with pytest.raises(Refusal, match="old"):
        sessions.open("a", challenge, answer_to(challenge, "a", KEYS["a"]))
    challenge = sessions.challenge("a")
    session = sessions.open("a", challenge, answer_to(challenge, "a", KEYS["a"]))

    def use(number):
        return sessions.node_of(authorization(session, number, "GET", b"/", KEYS["a"]), "GET", b"/")

    assert [use(number) for number in (1, 3, 2, 5000, 4999)] == ["a"] * 5
    for number in (1, 2, 3, 4, 5000, 0):
        with pytest.raises(Refusal, match="again"):
            use(number)
    for number in range(5001, 5100):
        use(number)
    with pytest.raises(Refusal, match="again"):
        use(5099)
    sessions.end("a")
    with pytest.raises(Refusal, match="session that is open"):
        use(9001)


def test_the_address_with_most_strangers_makes_room():
    connections = Connections(HttpsLimits(strangers=4, connections=6), RefusalLog())
    for address in [("x", 1), ("y", 1), ("y", 2), ("y", 3)]:
        connections.admit(address)
    connections.prove(("x", 1), "a")
    connections.admit(("z", 1))  # room for a fourth stranger
    connections.admit(("z", 2))
    assert connections.of(("y", 1)) is None  # the oldest of three
    assert all(connections.of(address) for address in [("x", 1), ("y", 2), ("y", 3), ("z", 1), ("z", 2)])
    for port in (2, 3):
        connections.prove(("y", port), "b")
        connections.prove(("z", port - 1), "c")
    connections.admit(("z", 3))
    connections.admit(("z", 4))
    assert len(connections) == 6
    assert connections.of(("z", 3)) is None
    connections.prove(("z", 4), "c")
    assert connections.admit(("z", 5)) is None  # all are nodes


def test_two_messages_of_a_node_at_once_arrive_both(network):
    server, node = network.server(), network.node("a")
    together(*(lambda data=data: node.send(data) for data in (DATA, DATA[1:], DATA[:10])))
    assert {server.receive(LONG) for _ in range(3)} == {DATA, DATA[1:], DATA[:10]}


def test_an_upload_in_single_bytes_is_the_same():
    upload = Upload("x", 100_000, 0.0)
    for at in range(20_000):
        upload.add(DATA[at : at + 1], 0)
    upload.add(DATA[20_000:90_000], 0)
    upload.add(DATA[90_000:100_000], 0)
    assert upload.whole() == DATA[:100_000]
    assert len(upload._chunks) < 6


def test_very_many_refusals_are_counted_rather_than_written(caplog):
    now = [0.0]
    refused = RefusalLog(burst=5, per_second=1.0, clock=lambda: now[0])
    for _ in range(100):
        refused("somebody", "Expected less.")
    now[0] = 1.0
    refused("somebody", "Expected less.")
    assert refused.count == 101
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["Refused somebody: Expected less."] * 5 + [
        "Refused somebody: Expected less. (95 more were not written)"
    ]


def test_limits_follow_the_size_of_the_model():
    small, large = HttpsLimits.for_model(100), HttpsLimits.for_model(10**9, nodes=500)
    assert small.message_bytes < 10**7 < 8 * 10**9 < large.message_bytes <= large.memory_bytes
    assert large.connections >= 8 * 500
    with pytest.raises(CloisterError, match="part_bytes > 0"):
        HttpsLimits(part_bytes=0)
    with pytest.raises(CloisterError, match="memory_bytes"):
        HttpsLimits(message_bytes=10**12)


def test_a_node_that_is_stopped_waits_no_longer_for_a_server_that_is_away(network):
    stop, caught = threading.Event(), []
    server = network.server()
    node = HttpsNode(network.url, "a", KEYS["a"], network.tls.certificate, patience=1e6, stop=stop)
    server.close()

    def send():
        with pytest.raises(Unreachable) as error:
            node.send(b"x")
        caught.append(error.value)

    threading.Timer(0.2, stop.set).start()
    together(send)
    assert caught
    node.close()
