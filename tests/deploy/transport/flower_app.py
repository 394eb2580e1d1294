"""Somebody who uses the network as Flower means it: uploads an app with code, and asks the nodes to run it."""

from __future__ import annotations

import time

from flwr.app import Message, RecordDict
from flwr.app.message import make_message
from flwr.cli.build import build_fab_from_files
from flwr.proto import control_pb2, fab_pb2
from flwr.supercore.control import ControlHttpClient

from cloister.deploy.transport.flower.records import error_of, question_to
from cloister.deploy.transport.flower.runtime import SERVER_APP, Runtime
from cloister.deploy.transport.flower.settings import FlowerAddress

_PROJECT = b"""\
[project]
name = "foreign"
version = "1.0.0"
description = "An app with code."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.code:app"
clientapp = "foreign.code:app"
"""


def upload(link: FlowerAddress, code: str) -> int:
    """What `flwr run` does; the number of the run."""
    files = {"pyproject.toml": _PROJECT, "foreign/__init__.py": b"", "foreign/code.py": code.encode()}
    app, _ = build_fab_from_files(files)
    client = ControlHttpClient.from_server_address(link.address, False, str(link.certificate), [])
    try:
        return int(client.StartRun(control_pb2.StartRunRequest(fab=fab_pb2.Fab(content=app))).run_id)
    finally:
        client.close()


def ask_everybody(link: FlowerAddress, run: int, nodes: int) -> list[str]:
    """Send a message in that run to every node; the errors of the first answers."""
    runtime = Runtime(link, "flwr-serverapp")
    assert runtime.acquire(SERVER_APP)
    assert runtime.route.run == run
    asked = [runtime._push(_message(run, node), 1) for node in runtime.nodes()]
    errors: list[str] = []
    until = time.monotonic() + 180
    while len(errors) < nodes and time.monotonic() < until:
        runtime.heartbeat()  # Flower takes the task from who is silent for a minute
        errors += [runtime.contents(one)[1] for one in runtime.answers(asked)]
        time.sleep(0.1)
    runtime.finish()
    runtime.close()
    return errors[:nodes]


def _message(run: int, node: int) -> Message:
    message = make_message(metadata=question_to(run, node), content=RecordDict())
    assert error_of(message) == ""
    return message
