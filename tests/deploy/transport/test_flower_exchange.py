"""What the server and a node say to each other through Flower, without Flower."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cloister.deploy.transport.flower.exchange import Batch, Parcel, Route, open_batch, seal_batch
from cloister.deploy.transport.flower.line import MOST_PARCELS, Line
from cloister.deploy.transport.flower.settings import FlowerAddress
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError
from deploy.transport.loopback import KEYS, REGISTER

ROUTE = Route(run=2**63 + 1, node=2**64 - 1)
BATCH = Batch(ROUTE, "a", "server", "me", "you", (1, 2), (Parcel(3, b"x" * 100), Parcel(4, b"")), "asked", 0.5)


def ask(line, recipient="a"):
    return line.batch(ROUTE, "server", recipient)


def reply(line):
    return line.batch(ROUTE, "a", "server")


def test_a_batch_comes_back_as_it_was():
    data, digest = seal_batch(BATCH, KEYS["a"])
    opened = open_batch(data, ROUTE, REGISTER.key_of)
    assert opened.batch == BATCH
    assert opened.digest == digest


@pytest.mark.parametrize("at", [3, 18, 30, 200, -1])
def test_a_changed_byte_is_refused(at):
    data = bytearray(seal_batch(BATCH, KEYS["a"])[0])
    data[at] ^= 1
    with pytest.raises(Refused):
        open_batch(bytes(data), ROUTE, REGISTER.key_of)


@pytest.mark.parametrize("data", [b"", b"cloister flower 1", b"pickle", seal_batch(BATCH, KEYS["a"])[0][:-1]])
def test_what_is_no_batch_is_refused(data):
    with pytest.raises(Refused):
        open_batch(data, ROUTE, REGISTER.key_of)


def test_another_key_is_refused():
    with pytest.raises(Refused, match="signature of a"):
        open_batch(seal_batch(BATCH, KEYS["stranger"])[0], ROUTE, REGISTER.key_of)
    with pytest.raises(Refused, match="not in the register"):
        open_batch(seal_batch(replace(BATCH, sender="stranger"), KEYS["stranger"])[0], ROUTE, REGISTER.key_of)


@pytest.mark.parametrize("route", [Route(7, ROUTE.node), Route(ROUTE.run, 7)])
def test_a_batch_of_another_run_or_node_is_refused(route):
    with pytest.raises(Refused, match="a batch for run"):
        open_batch(seal_batch(BATCH, KEYS["a"])[0], route, REGISTER.key_of)


def test_a_message_is_kept_until_it_is_confirmed():
    server, node = Line(), Line()
    number = server.put(b"offer")
    asked = ask(server)
    assert [parcel.data for parcel in asked.parcels] == [b"offer"]
    assert ask(server).parcels == ()  # it is on its way
    assert server.holds(number)
    assert node.accept(asked) == [b"offer"]
    assert server.accept(reply(node)) == []
    assert server.idle


def test_a_message_that_was_lost_is_sent_again():
    server, node = Line(), Line()
    server.put(b"offer")
    ask(server)  # never arrives
    came = []
    for _ in range(10):
        server.accept(reply(node))
        came += node.accept(ask(server))
    assert came == [b"offer"]
    assert server.idle
    server.put(b"again")
    ask(server)
    server.again()
    assert node.accept(ask(server)) == [b"again"]


def test_a_message_is_given_once():
    server, node = Line(), Line()
    server.put(b"same")
    first = ask(server)
    server.again()
    assert node.accept(first) == [b"same"]
    assert node.accept(ask(server)) == []
    server.put(b"same")  # sent again on purpose
    assert node.accept(ask(server)) == [b"same"]


def test_another_process_gets_what_the_last_one_did_not_confirm():
    server, node = Line(), Line()
    server.accept(reply(node))
    server.put(b"offer")
    ask(server)
    restarted = Line()
    server.accept(reply(restarted))
    assert restarted.accept(ask(server)) == [b"offer"]


def test_numbers_of_another_process_confirm_nothing():
    server, node = Line(), Line()
    node.accept(ask(server))
    node.put(b"reply")
    reply(node)
    node.accept(replace(ask(server), peer="another", received=(1,)))
    assert node.holds(1)


def test_what_was_cleared_is_not_sent():
    server = Line()
    server.put(b"old")
    server.clear()
    server.put(b"new")
    assert [parcel.data for parcel in ask(server).parcels] == [b"new"]


def test_a_batch_holds_so_many_messages():
    server, node = Line(), Line()
    for i in range(3 * MOST_PARCELS + 1):
        server.put(bytes([i]))
    came = []
    for _ in range(4):
        came += node.accept(ask(server))
        server.accept(reply(node))
    assert came == [bytes([i]) for i in range(3 * MOST_PARCELS + 1)]
    assert server.idle


def test_an_address_elsewhere_needs_a_certificate(tmp_path):
    authority = tmp_path / "ca.pem"
    with pytest.raises(CloisterError, match="a file"):
        FlowerAddress("hospital.example:9092", authority)
    authority.touch()
    FlowerAddress("127.0.0.1:9092")
    FlowerAddress("hospital.example:9092", authority)
    with pytest.raises(CloisterError, match="certificate"):
        FlowerAddress("hospital.example:9092")
    with pytest.raises(CloisterError, match="host:port"):
        FlowerAddress("hospital.example")
