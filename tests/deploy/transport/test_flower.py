"""Flower does what every transport does: SuperLink and SuperNodes with TLS and node authentication, on loopback."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower has an environment with it")

from flwr.app import RecordDict

from cloister.deploy.operation.flower_programs import FlowerNetwork, flower_network
from cloister.deploy.transport.flower.node import FlowerNode
from cloister.deploy.transport.flower.runtime import AGENT_APP, CLIENT_APP, SERVER_APP, Runtime, TaskLost
from cloister.deploy.transport.flower.server import FlowerServer
from deploy.transport import conformance
from deploy.transport.conformance import LONG, TransportConformance, collect
from deploy.transport.loopback import KEYS, REGISTER

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    with flower_network(tmp_path_factory.mktemp("flower"), REGISTER.names) as network:
        yield network


class _Flower:
    large = 9_000_000

    def __init__(self, programs: FlowerNetwork) -> None:
        self.programs, self._open = programs, []

    def server(self, key="server"):
        server = FlowerServer(self.programs.link, REGISTER, KEYS[key])
        self._open.append(server)
        return server

    def node(self, name, patience=4 * LONG, key=None):
        node = FlowerNode(self.programs.at(name), name, KEYS[key or name], REGISTER.server, patience)
        self._open.append(node)
        return node

    def close(self):
        """End all, and let the SuperNodes put away what they hold of a run that is over."""
        for one in reversed(self._open):
            one.close()
        for name in REGISTER.names:
            put_away(self.programs.at(name))


def put_away(address, quiet=1.0):
    """Refuse tasks of a SuperNode until none came for so long."""
    runtime, until = Runtime(address, "flwr-clientapp"), time.monotonic() + quiet
    while time.monotonic() < until:
        with suppress(TaskLost):  # the SuperNode gives a task up whose run ended before its message was there
            if runtime.acquire(CLIENT_APP):
                until = time.monotonic() + quiet
                question = runtime.question()
                if question is not None:
                    runtime.answer(question, None)
                runtime.finish("over")
        time.sleep(0.1)
    runtime.close()


@pytest.fixture
def network(programs, monkeypatch):
    monkeypatch.setattr(conformance, "LONG", 4 * LONG)  # a message takes a second here, more on a busy machine
    flower = _Flower(programs)
    yield flower
    flower.close()


class TestFlower(TransportConformance):
    pass


def test_a_node_with_another_key_is_not_heard(network):
    server, stranger, node = network.server(), network.node("a", key="stranger", patience=2), network.node("b")
    node.send(b"hello")
    assert server.receive(LONG) == b"hello"
    with pytest.raises(Exception, match="Expected the server to take a message"):
        stranger.send(b"let me in")
    assert set(server.seen()) == {"b"}


def test_another_server_gets_nothing(network):
    impostor, node = network.server(key="stranger"), network.node("a", patience=8)
    impostor.send("a", b"give me your update")
    with pytest.raises(Exception, match="Expected the server to take a message"):
        node.send(b"an update")
    assert impostor.receive(0.0) is None
    assert node.receive(0.0) is None


def test_an_uploaded_app_is_not_run(network, tmp_path):
    """Somebody starts a run with code in it and sends a message to all nodes: they refuse."""
    from deploy.transport.flower_app import ask_everybody, upload

    node = network.node("a")
    trace = tmp_path / "trace"
    run = upload(network.programs.link, f"open({str(trace)!r}, 'w')\n")
    (answer,) = ask_everybody(network.programs.link, run, nodes=1)
    assert "runs no uploaded app" in answer
    assert not trace.exists()
    assert node.receive(0.0) is None


def test_a_task_is_not_given_up_before_its_message_is_there(programs, monkeypatch):
    """A SuperNode creates the task first. An executor that ended it then would leave the SuperNode waiting for ever."""
    from flwr.app.message import make_message
    from flwr.common.serde import message_to_proto
    from flwr.proto import message_pb2, runtime_pb2

    from cloister.deploy.transport.flower.records import question_to

    runtime = Runtime(programs.at("a"), "flwr-clientapp")
    sent = message_to_proto(make_message(metadata=question_to(7, 1), content=RecordDict()))
    late = runtime_pb2.PullAppMessagesResponse(messages_list=[sent], message_object_trees=[message_pb2.ObjectTree()])
    answers = [runtime_pb2.PullAppMessagesResponse(), runtime_pb2.PullAppMessagesResponse(), late]
    monkeypatch.setattr(runtime, "_call", lambda method, request: answers.pop(0))
    question = runtime.question()
    assert question is not None
    assert question.metadata.run_id == 7
    runtime.close()


def test_who_has_no_secret_gets_no_task(programs):
    from dataclasses import replace

    for address in (programs.link, programs.at("a")):
        runtime = Runtime(replace(address, secret=None), "flwr-clientapp")
        with pytest.raises(TaskLost, match="status 401"):
            runtime.acquire(SERVER_APP, CLIENT_APP, AGENT_APP)
        runtime.close()


def test_a_superlink_that_was_restarted_goes_on(tmp_path):
    with flower_network(tmp_path, ["a"], database=True) as programs:
        flower = _Flower(programs)
        server, node = flower.server(), flower.node("a")
        node.send(b"before")
        assert server.receive(LONG) == b"before"
        programs.kill("link")
        server.send("a", b"meanwhile")
        programs.start_link()
        assert collect(node.receive, {b"meanwhile"})[-1] == b"meanwhile"
        node.send(b"after")
        assert collect(server.receive, {b"after"})[-1] == b"after"
        node.close()
        server.close()
