"""What strangers and bad members try against the HTTPS server: each is refused with a sentence, and others go on."""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress

import pytest

from cloister.deploy.transport.https.sessions import answer_to
from cloister.deploy.wire.canonical import canonical
from cloister.deploy.wire.messages import Kind, Message, open_message, seal
from cloister.deploy.wire.refused import Refused
from deploy.transport.conformance import LONG
from deploy.transport.https_network import https_network
from deploy.transport.loopback import KEYS, REGISTER
from deploy.transport.raw import Member, connect, head, status_and_error, until_closed

TEN_GIGABYTES = 10 * 10**9


@pytest.fixture
def network(caplog):
    caplog.set_level(logging.WARNING, logger="cloister.deploy.https")
    with https_network() as network:
        yield network


@pytest.fixture
def hasty(caplog):
    """A network that waits for nobody."""
    caplog.set_level(logging.WARNING, logger="cloister.deploy.https")
    with https_network(header_seconds=1.5, body_seconds=1.5) as network:
        yield network


def others_go_on(network, server):
    """A node that does nothing wrong is served."""
    node = network.node("c")
    node.send(b"reply")
    assert server.receive(LONG) == b"reply"
    server.send("c", b"offer")
    assert node.receive(LONG) == b"offer"


def logged(caplog, words, count=1):
    """Wait for a sentence in the log: what the other side sees may come a moment before."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        found = [record.getMessage() for record in caplog.records if words in record.getMessage()]
        if len(found) >= count:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{words!r} is not in {[record.getMessage() for record in caplog.records]}")


def test_a_strangers_key_is_refused(network, caplog):
    server = network.server()
    with pytest.raises(Refused, match="signature of a"):
        network.node("a", key=KEYS["stranger"]).send(b"data")
    with pytest.raises(Refused, match="'stranger': it is not in the register"):
        network.node("stranger").receive(1.0)
    assert len(logged(caplog, "Expected the signature of a, found another", 1)) == 1
    logged(caplog, "Refused 127.0.0.1: Expected a node of the federation, found 'stranger'")
    assert server.receive(0.0) is None
    assert server.seen() == {}
    others_go_on(network, server)


@pytest.mark.parametrize("method", ["POST", "PUT", "GET"])
def test_a_request_without_a_session_is_refused_before_its_body(network, caplog, method):
    server = network.server()
    target = {"POST": "/v1/messages", "PUT": "/v1/uploads/x?offset=0", "GET": "/v1/messages?milliseconds=0"}[method]
    connection = connect(network)
    connection.sendall(head(method, target, f"Content-Length: {TEN_GIGABYTES}"))
    assert status_and_error(until_closed(connection)) == (401, logged(caplog, "signed request")[0].split(": ", 1)[1])
    others_go_on(network, server)


def test_ten_gigabytes_are_refused_when_declared(network, caplog):
    server, member = network.server(), Member(network, "a")
    connection = connect(network)
    connection.sendall(member.head("POST", "/v1/messages", f"Content-Length: {TEN_GIGABYTES}"))
    status, error = status_and_error(until_closed(connection))
    assert (status, str(TEN_GIGABYTES) in error) == (413, True)
    connection = connect(network)
    target = f"/v1/uploads/x?bytes={TEN_GIGABYTES}"
    connection.sendall(member.head("POST", target, "Content-Length: 0"))
    status, error = status_and_error(until_closed(connection))
    assert (status, error) == (413, "Expected a message of at most 268435456 bytes, found 10000000000: send less.")
    logged(caplog, f"Refused a (127.0.0.1): {error}")
    others_go_on(network, server)


@pytest.mark.parametrize("target", ["/v1/messages", "/v1/challenge"])
def test_ten_gigabytes_are_refused_while_they_stream(network, caplog, target):
    server, member = network.server(), Member(network, "a")
    connection = connect(network)
    connection.sendall(member.head("POST", target, "Transfer-Encoding: chunked"))
    chunk, sent = b"%x\r\n%s\r\n" % (100_000, b"x" * 100_000), 0
    try:
        while sent < TEN_GIGABYTES:
            connection.sendall(chunk)
            sent += len(chunk)
    except OSError:
        pass
    connection.close()
    assert sent < 50_000_000  # what buffers on the way hold, and no more
    logged(caplog, "bytes, found more: send less")
    assert server.receive(0.0) is None
    others_go_on(network, server)


def test_an_upload_that_is_longer_than_declared_is_refused(network, caplog):
    server, member = network.server(), Member(network, "a")
    connection = connect(network)
    connection.sendall(
        member.head("POST", "/v1/uploads/x?bytes=4", "Content-Length: 0")
        + member.head("PUT", "/v1/uploads/x?offset=0", "Content-Length: 5")
        + b"12345"
    )
    until_closed(connection)
    logged(caplog, "declare its true length")
    assert server.receive(0.0) is None
    others_go_on(network, server)


def test_a_tampered_or_replayed_message_is_what_it_was_signed_as(network):
    """The transport is not trusted: whatever it carries, the signature tells."""
    server, node = network.server(), network.node("b")
    data = seal(Message(Kind.REPLY, "run", 1, "a", "server"), KEYS["a"])
    for sent in (data, data, data[:-1] + b"x", data.replace(b'"round":1', b'"round":2')):
        node.send(sent)
    first, again = server.receive(LONG), server.receive(LONG)
    assert open_message(first, REGISTER).digest == open_message(again, REGISTER).digest  # by which a loop knows it
    for _ in range(2):
        with pytest.raises(Refused, match="Expected"):
            open_message(server.receive(LONG), REGISTER)


def test_what_a_thief_sees_of_a_session_is_of_no_use(network, caplog):
    server, member, thief = network.server(), Member(network, "a"), Member(network, "b")
    server.send("a", b"for a alone")
    target = "/v1/messages?milliseconds=0"

    def answer(*lines):
        connection = connect(network)
        connection.sendall(head("GET", target, *lines, "Connection: close"))
        return until_closed(connection)

    header = member.header("GET", target).strip()
    assert answer(header).endswith(b"for a alone")
    assert status_and_error(answer(header))[0] == 409  # the same request again
    stolen = Member.__new__(Member)
    stolen.__dict__.update(thief.__dict__ | {"session": member.session})
    assert status_and_error(answer(stolen.header("GET", target).strip()))[0] == 403  # the session, with another key
    other = member.header("GET", "/v1/messages?milliseconds=1").strip()
    assert status_and_error(answer(other))[0] == 403  # the signature, for another request
    assert b"204" in answer(thief.header("GET", target).strip())  # its own session gives it what is its own
    assert Member(network, "a").session != member.session
    assert status_and_error(answer(member.header("GET", target).strip()))[0] == 401  # a new session ends the old one
    for sentence in ("found number 1000 again", "request signed by a", "a session that is open"):
        logged(caplog, sentence)
    others_go_on(network, server)


def test_a_challenge_is_answered_once(network, caplog):
    server = network.server()

    def post(path, values):
        body = canonical(values)
        connection = connect(network)
        connection.sendall(head("POST", path, f"Content-Length: {len(body)}", "Connection: close") + body)
        return until_closed(connection)

    challenge = post("/v1/challenge", {"node": "a"}).split(b'"')[-2].decode()
    values = {"node": "a", "challenge": challenge, "signature": answer_to(challenge, "a", KEYS["a"])}
    assert b"200 OK" in post("/v1/session", values)
    assert status_and_error(post("/v1/session", values))[0] == 401
    assert status_and_error(post("/v1/session", values | {"challenge": "x" + challenge}))[0] == 401
    assert status_and_error(post("/v1/session", {"node": "a"}))[0] == 400
    assert status_and_error(post("/v1/challenge", {"node": "x" * 5000}))[0] == 413
    logged(caplog, "a new challenge, found one that was answered")
    others_go_on(network, server)


def test_huge_headers_and_what_is_no_http_are_refused(network, caplog):
    server = network.server()
    for data in (
        head("GET", "/health", "X: " + "x" * 1_000_000),
        head("GET", "/health", *(f"X{i}: x" for i in range(50_000))),
        b"\x00" * 100_000,
    ):
        connection = connect(network)
        with suppress(OSError):
            connection.sendall(data)
        assert until_closed(connection)[:12] in (b"HTTP/1.1 400", b"")
    assert len(logged(caplog, "an HTTP request of moderate size", 3)) == 3
    others_go_on(network, server)


def test_slow_headers_end(hasty, caplog):
    server = hasty.server()
    silent, slow, second = connect(hasty), connect(hasty), connect(hasty)
    slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
    second.sendall(head("GET", "/health") + b"GET /hea")
    slow.setblocking(False)
    start = time.monotonic()
    while time.monotonic() - start < LONG:  # a byte now and then does not help
        try:
            slow.sendall(b"x")
        except OSError:
            break
        time.sleep(0.05)
    assert time.monotonic() - start < LONG / 2
    slow.close()
    assert until_closed(silent) == b""
    assert until_closed(second).count(b"HTTP/1.1") == 1
    assert len(logged(caplog, "headers within 1.5 s", 3)) == 3
    others_go_on(hasty, server)


def test_a_handshake_that_never_comes_ends(hasty, caplog):
    server = hasty.server()
    plain = socket.create_connection(("127.0.0.1", hasty.port), timeout=LONG)
    assert until_closed(plain) == b""
    http = socket.create_connection(("127.0.0.1", hasty.port), timeout=LONG)
    http.sendall(b"GET /health HTTP/1.1\r\n\r\n")
    assert b"200" not in until_closed(http)
    assert len(logged(caplog, "TLS handshake", 2)) == 2
    others_go_on(hasty, server)


def test_slow_bodies_end(hasty, caplog):
    server, member = hasty.server(), Member(hasty, "a")
    heads = [
        member.head("POST", "/v1/messages", "Content-Length: 1000"),
        member.head("POST", "/v1/messages", "Transfer-Encoding: chunked"),
        head("POST", "/v1/challenge", "Content-Length: 1000"),
    ]
    connections = [connect(hasty) for _ in heads]
    for connection, text in zip(connections, heads, strict=True):
        connection.sendall(text)
    for connection in connections:
        assert status_and_error(until_closed(connection))[0] == 408
    assert len(logged(caplog, "a body within 1.5 s", 3)) == 3
    assert server.receive(0.0) is None
    others_go_on(hasty, server)


def test_a_response_that_nobody_takes_ends(hasty, caplog):
    server, member = hasty.server(), Member(hasty, "a")
    server.send("a", bytes(64_000_000))
    connection = connect(hasty, receive_buffer=4096)
    connection.sendall(member.head("GET", "/v1/messages?milliseconds=0"))
    name = connection.recv(4096).decode().lower().split("message-name: ")[1].split()[0]
    connection.sendall(member.head("GET", f"/v1/messages/{name}"))
    logged(caplog, "the response to be taken within 1.5 s")
    assert len(until_closed(connection)) < 64_000_000
    others_go_on(hasty, server)


def test_many_connections_of_strangers_make_room(caplog):
    caplog.set_level(logging.WARNING, logger="cloister.deploy.https")
    with https_network(strangers=5) as network:
        server, node = network.server(), network.node("a")
        node.send(b"before")
        strangers = [connect(network) for _ in range(15)]
        strangers += [socket.create_connection(("127.0.0.1", network.port), timeout=LONG) for _ in range(15)]
        for connection in strangers[:25]:
            assert until_closed(connection) == b""
        assert len(logged(caplog, "at most 5 connections before a key is proved", 25)) >= 25
        node.send(b"after")
        assert [server.receive(LONG), server.receive(LONG)] == [b"before", b"after"]
        others_go_on(network, server)
        for connection in strangers[25:]:
            connection.close()


def test_many_connections_of_a_member_are_refused(caplog):
    caplog.set_level(logging.WARNING, logger="cloister.deploy.https")
    with https_network(node_connections=2) as network:
        server, member = network.server(), Member(network, "a")
        connections = [connect(network) for _ in range(3)]
        for connection in connections:
            connection.sendall(member.head("GET", "/v1/messages?milliseconds=0"))
            answer = connection.recv(4096)
        assert b" 429 " in answer
        logged(caplog, "at most 2 connections of a")
        others_go_on(network, server)
        for connection in connections:
            connection.close()
