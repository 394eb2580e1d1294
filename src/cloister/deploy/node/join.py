"""`join`: a node of a federation, with its own rows, key, ledger and limits. It may be killed at any instant."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cloister.core import Samples
from cloister.deploy.certificates.node_certificate import (
    node_certificate,
    receipt,
    statement,
    write_node_certificate,
)
from cloister.deploy.certificates.words import delta_of
from cloister.deploy.events import Events, OnEvent
from cloister.deploy.halves.node_half import NodeHalf
from cloister.deploy.halves.own_rows import Rows
from cloister.deploy.node.agreement import Agreement
from cloister.deploy.node.folder import NodeFolder
from cloister.deploy.node.history import Agreed
from cloister.deploy.node.mail import Mail, Stopped
from cloister.deploy.node.node import TICK, Node
from cloister.deploy.node.old_copies import expect_newest, expect_remembered
from cloister.deploy.terms.terms import Terms
from cloister.deploy.transport.base import NodeTransport
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.messages import Kind
from cloister.deploy.wire.refused import Refused
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget

_AGAIN = 3.0
"""Seconds after which a node that has not heard of the terms asks again."""


@dataclass(frozen=True)
class NodeResult:
    """How a node ended: where its files are, why, and what it has spent (signed)."""

    folder: Path
    run: str
    state: Literal["finished", "refused", "stopped"]
    reason: str
    certificate: dict[str, Any] | None = None


def join(
    terms: Terms,
    key: PrivateKey,
    transport: NodeTransport,
    rows: Rows,
    folder: Path | str,
    limit: Budget | None,
    agree: Callable[[Agreement], bool],
    *,
    on_event: OnEvent | None = None,
    stop: threading.Event | None = None,
    engine: str = "loop",
    public: Samples | None = None,
    patience: float | None = None,
) -> NodeResult:
    """Take part in a federation to its end, or go on where this node was interrupted. Blocks; `stop` ends it.

    `folder` holds the ledger of these rows: use the same one in every federation. `limit` is for all of them together.
    `agree` is asked once for a run, before anything is computed; False refuses. With `patience`, a node gives up when
    the server was silent for so many seconds.
    """
    name = name_of(terms, key)
    events, ended = Events(on_event), stop or threading.Event()
    place = NodeFolder(Path(folder), limit, rows.fingerprint)
    mail = Mail(terms, name, key, transport, ended)
    run = ""
    try:
        place.ledger.expect_bounded(terms.test_mode)
        expect_newest(place)
        nonce, stands, answer = _ask(mail, events)
        run = terms.run_of(nonce)
        _expect_remembered(place, run, mail, answer, events)
        files = place.run(run)
        try:
            if files.agreed is None:
                if not agree(_agreement(terms, name, run, rows, place)):
                    return _refuse(mail, place, run)
                files.agree(terms.digest, nonce, stands)
            half = NodeHalf.of(terms, run, name, rows, engine, public)
            node = Node(terms, run, half, place, files, mail, events)
            reason = node.loop(patience)
            certificate = node_certificate(terms, name, run, node.half, place.ledger, files, key)
            write_node_certificate(files.path, certificate, receipt(terms, name, run, files, key))
            content: dict[str, JSON] = {"statement": statement(certificate)}
            node.state_spent(mail.sealed(Kind.STATEMENT, run, 0, "", content))
            events.tell("node ended", run=run, reason=reason)
            return NodeResult(files.path, run, "finished", reason, certificate)
        finally:
            files.close()
    except Stopped:
        events.tell("node stopped", run=run)
        return NodeResult(place.path, run, "stopped", "somebody stopped it; start it again to go on")
    finally:
        place.close()


def name_of(terms: Terms, key: PrivateKey) -> str:
    """The name under which the terms list a key."""
    for name, public in terms.register.nodes.items():
        if public == key.public:
            return name
    raise CloisterError(
        f"Expected the key of one of the nodes {', '.join(terms.register.names)}, found {key.public.fingerprint}: use "
        "the private key whose public half stands in the terms."
    )


def _expect_remembered(place: NodeFolder, run: str, mail: Mail, told: str, events: Events) -> None:
    try:
        expect_remembered(place, run, mail.name, mail.terms.register, told)
    except Refused as error:  # a server's mistake proves nothing of this ledger
        events.tell("message refused", "warning", reason=str(error))


def _ask(mail: Mail, events: Events) -> tuple[str, Agreed, str]:
    """Which run it is, where its history stands, and the newest answer of this node that the server has; the server's
    terms must be those that this node has."""
    asked = -_AGAIN
    while True:
        if time.monotonic() - asked > _AGAIN:
            asked = time.monotonic()
            mail.send(mail.sealed(Kind.HELLO, "", 0, "", {}))
        try:
            opened = mail.receive(TICK)
            if opened is None or opened.message.kind is not Kind.TERMS:
                continue
            content = opened.message.content
            found = Terms.from_json(content.get("terms"))
            nonce = fields.text(content, "nonce")
            stands = Agreed(fields.integer(content, "length"), fields.text(content, "head"))
            answer = fields.text(content, "answer") if "answer" in content else ""
        except CloisterError as error:
            events.tell("message refused", "warning", reason=str(error))
            continue
        if found.digest != mail.terms.digest:
            reason = (
                f"Expected the terms {mail.terms.digest[:12]} that this node was given, found {found.digest[:12]} at "
                "the server: ask which of them were agreed on."
            )
            mail.send(mail.sealed(Kind.REFUSE, opened.message.run, 0, found.digest, {"reason": reason}))
            raise CloisterError(reason)
        return nonce, stands, answer


def _agreement(terms: Terms, name: str, run: str, rows: Rows, place: NodeFolder) -> Agreement:
    ledger, limit = place.ledger, place.ledger.limit
    delta = limit.delta if limit is not None else delta_of(terms)
    spent = math.inf if ledger.test_runs and not terms.test_mode else ledger.spent(delta)
    return Agreement(terms, name, run, len(rows), spent, delta, limit, tuple(ledger.runs))


def _refuse(mail: Mail, place: NodeFolder, run: str) -> NodeResult:
    reason = "Expected this node's operator to agree to the terms, found a refusal: ask its operator."
    mail.send(mail.sealed(Kind.REFUSE, run, 0, mail.terms.digest, {"reason": reason}))
    return NodeResult(place.path, run, "refused", reason)
