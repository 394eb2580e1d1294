"""`serve`: the server of a federation. It may be killed at any instant, and goes on from its folder."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloister.core import Samples
from cloister.deploy.certificates.server_certificate import server_certificate, write_server_certificate
from cloister.deploy.events import Events, OnEvent
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.server.folder import ServerFolder
from cloister.deploy.server.post import Post
from cloister.deploy.server.server import Server, Stopped
from cloister.deploy.terms.terms import Terms
from cloister.deploy.transport.base import ServerTransport
from cloister.deploy.wire.bodies import pack
from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.identity import PrivateKey
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.unit import ProtectedUnit

_LINGER = 0.3
"""Seconds in which the last receipts reach their nodes."""


@dataclass(frozen=True)
class ServerResult:
    """How a server ended: where its files are, and why it ended."""

    folder: Path
    run: str
    state: Literal["finished", "stopped"]
    reason: str
    certificate: dict[str, Any] | None = None


def serve(
    terms: Terms,
    key: PrivateKey,
    transport: ServerTransport,
    folder: Path | str,
    *,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
    wait: float | None = None,
    public: Samples | None = None,
) -> ServerResult:
    """Run a federation to its end, or go on with one that was interrupted. Blocks; `stop` ends it where it stands.

    It begins when every node has accepted or refused; with `wait`, after so many seconds if enough have accepted.
    `public` are the public samples, where the terms name some.
    """
    if key.public != terms.register.server:
        raise CloisterError(
            f"Expected the key {terms.register.server.fingerprint} of the server in the terms, found "
            f"{key.public.fingerprint}: use the private key that belongs to server_key."
        )
    events = Events(on_event)
    place = ServerFolder(Path(folder), terms)
    try:
        half = ServerHalf.of(terms, place.run) if public is None else ServerHalf.of(terms, place.run, public)
        post = Post(place.run, key, terms.register, transport)
        server = Server(terms, half, place, post, events, stop or threading.Event())
        try:
            return _run(server, wait)
        except Stopped:
            server.status.phase = "stopped"
            events.tell("server stopped", run=place.run)
            return ServerResult(place.path, place.run, "stopped", "somebody stopped it; start it again to go on")
        finally:
            server.status.write(server, now=True)
    finally:
        place.close()


def _run(server: Server, wait: float | None) -> ServerResult:
    links = server.folder.history.chain.links
    ended = links[-1] if links[-1]["link"] == "ended" else None
    if ended is None:
        reason = _steps(server, wait)
        ledger = server.ledger if server.half.unit is ProtectedUnit.CLIENT else None
        server.half.model_files(server.folder.path / "model", ledger)
        model = digest_of(pack({"w": server.half.progress.result}))
        server.folder.history.add({"link": "ended", "reason": reason, "model": model})
    else:
        reason = str(ended["reason"])
    certificate = _farewell(server, reason)
    return ServerResult(server.folder.path, server.folder.run, "finished", reason, certificate)


def _steps(server: Server, wait: float | None) -> str:
    """All steps that are left; why there are no more."""
    if server.half.next_step() is not None:
        server.gather(wait)
    while (step := server.half.next_step()) is not None:
        if too_few := server.too_few(step):
            server.events.tell("nodes have spent their budgets", "warning", round=step.round, reason=too_few)
            return too_few
        try:
            server.run_step(step)
        except BudgetExceededError as error:
            server.events.tell("budget spent", "warning", round=step.round, reason=str(error))
            return str(error)
    return server.half.progress.stopped or _done(server)


def _done(server: Server) -> str:
    """All steps were run; how many of them for nothing, where nodes were away or had reached their limits."""
    closed = [link for link in server.folder.history.chain.links if link["link"] == "closed"]
    missed = sum(not link["released"] for link in closed)
    too_few = f", but {missed} of {len(closed)} steps had too few replies and were not released"
    return "all rounds are done" + (too_few if missed else "")


def _farewell(server: Server, reason: str) -> dict[str, Any]:
    """Tell nodes that it is over, and wait for what they state to have spent; then the certificate."""
    server.status.phase, server.over = "finished", reason
    for name in server.folder.read_signed("statements"):
        server.members[name].state = "done"
    waiting = [member for member in server.members.accepted if member.state != "done"]
    for member in waiting:
        server.say_end(member)
    until = time.monotonic() + server.terms.federation.deadline
    while any(member.state != "done" for member in waiting) and time.monotonic() < until:
        server.listen(until)
    until = time.monotonic() + _LINGER
    while time.monotonic() < until:
        server.listen(until)
    certificate = server_certificate(server.terms, server.half, server.folder, server.post.key)
    write_server_certificate(server.folder.path, certificate)
    server.events.tell("federation ended", run=server.folder.run, reason=reason)
    return certificate
