"""A run of Flower that carries a federation: an app without code, which the SuperLink wants before it lets us talk."""

from __future__ import annotations

import time

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.proto import control_pb2, fab_pb2
from flwr.supercore.control import ControlHttpClient

from cloister.deploy.transport.base import Unreachable
from cloister.deploy.transport.flower.runtime import SERVER_APP, Runtime
from cloister.deploy.transport.flower.settings import FlowerAddress

_APP = b"""\
[project]
name = "cloister"
version = "1.0.0"
description = "A federation of Cloister: executors of Cloister run it, and this app holds no code."
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]

[tool.flwr.app]
publisher = "cloister"

[tool.flwr.app.components]
serverapp = "nothing:app"
clientapp = "nothing:app"
"""
_STEP = 0.1


def start_run(address: FlowerAddress, runtime: Runtime, seconds: float) -> None:
    """Start a run and take its server app's task; apps of others that wait for an executor are refused."""
    until = time.monotonic() + seconds
    run = _start(address)
    while time.monotonic() < until:
        if not runtime.acquire(SERVER_APP):
            time.sleep(_STEP)
        elif runtime.route.run == run:
            return
        else:
            runtime.finish("This executor runs no uploaded app.")
    raise Unreachable(
        f"Expected the task of run {run} from the SuperLink at {address.address}, found none in {seconds:g} s: start "
        "the SuperLink with --isolation process, and no other executor beside this one."
    )


def _start(address: FlowerAddress) -> int:
    app, _ = build_fab_from_files({"pyproject.toml": _APP})
    client = ControlHttpClient.from_server_address(
        address.address,
        insecure=address.certificate is None,
        root_certificates=None if address.certificate is None else str(address.certificate),
        interceptors=[],
    )
    try:
        return int(client.StartRun(control_pb2.StartRunRequest(fab=fab_pb2.Fab(content=app))).run_id)
    except httpx.HTTPError as error:
        raise Unreachable(
            f"Expected a SuperLink at {address.address} that starts a run, found {error!r}: start it, or look at its "
            "address and its certificate."
        ) from None
    finally:
        client.close()
