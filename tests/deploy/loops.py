"""Whole federations in one process: a server and its nodes as threads, over any transport."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cloister.deploy.halves import Progress, Rows
from cloister.deploy.node.join import NodeResult, join
from cloister.deploy.server.serve import ServerResult, serve
from cloister.deploy.stored import read_stored
from cloister.deploy.terms import Terms
from cloister.deploy.transport.memory import MemoryNetwork
from cloister.deploy.wire.identity import SERVER, PrivateKey
from cloister.deploy.wire.messages import Kind, Message, Opened, open_message, seal
from cloister.privacy.budgets import Budget
from deploy.halves.federations import NAMES, SIZES, data_of, tables

SECRETS = {name: PrivateKey.from_seed(bytes([number]) * 32) for number, name in enumerate(("server", *NAMES), start=1)}
WITHIN = float(os.environ.get("CLOISTER_TESTS_WITHIN", 300.0))
"""Seconds after which a test that hangs is ended: many, for machines with other work to do. `make mutants` has fewer,
because some planted bugs show by a node that waits for ever."""


def loop_terms(values: Mapping[str, Any], **federation: Any) -> Terms:
    """Terms of four nodes whose private keys are known here."""
    who = {
        "server_key": SECRETS["server"].public.text,
        "nodes": {name: SECRETS[name].public.text for name in NAMES},
        "deadline": 20.0,
    }
    return Terms.from_tables(tables(values, **{**who, **federation}))


def rows_of(terms: Terms, name: str) -> Rows:
    client = NAMES.index(name)
    return Rows.of(*data_of(client, SIZES[client]), terms.samples)


class Threads:
    """A federation of threads. Their events are kept by name; what they returned, or raised, too."""

    def __init__(
        self, terms: Terms, folder: Path, network: Any = None, limit: Budget | None = None, public: Any = None
    ) -> None:
        self.terms, self.folder, self.limit, self.public = terms, folder, limit, public
        self.network = network or MemoryNetwork(terms.register)
        self.events: dict[str, list[dict[str, Any]]] = {name: [] for name in ("server", *NAMES)}
        self.results: dict[str, Any] = {}
        self.stop = threading.Event()
        self._threads: dict[str, threading.Thread] = {}

    def start(self, *nodes: str, **options: Any) -> Threads:
        self.start_server(**options)
        for name in nodes or NAMES:
            self.start_node(name)
        return self

    def start_server(self, **options: Any) -> None:
        transport = self.network.server()
        self._start(
            "server",
            lambda told: serve(
                self.terms,
                SECRETS["server"],
                transport,
                self.folder / "server",
                on_event=told,
                stop=self.stop,
                public=self.public,
                **options,
            ),
        )

    def start_node(self, name: str, terms: Terms | None = None, **options: Any) -> None:
        transport = self.network.node(name)
        options = {"agree": lambda agreement: True, "limit": self.limit, **options}
        self._start(
            name,
            lambda told: join(
                terms or self.terms,
                SECRETS[name],
                transport,
                rows_of(self.terms, name),
                self.folder / name,
                on_event=told,
                stop=self.stop,
                public=self.public,
                **options,
            ),
        )

    def _start(self, name: str, work: Callable[[Any], Any]) -> None:
        def run() -> None:
            try:
                self.results[name] = work(self.events[name].append)
            except BaseException as error:
                self.results[name] = error

        self._threads[name] = threading.Thread(target=run, daemon=True)
        self._threads[name].start()

    def end(self, *names: str) -> dict[str, Any]:
        """Wait for all threads, or for some; the results of these."""
        for name in names or tuple(self._threads):
            self._threads[name].join(WITHIN)
            if self._threads[name].is_alive():
                self.stop.set()
                raise AssertionError(f"{name} hangs: {self.events[name][-5:]}; server: {self.events['server'][-5:]}")
        for name in names or tuple(self._threads):
            if isinstance(self.results[name], BaseException):
                raise self.results[name]
        return self.results

    def server(self) -> ServerResult:
        return self.results["server"]

    def node(self, name: str) -> NodeResult:
        return self.results[name]

    def reasons(self, name: str = "server") -> list[str]:
        return [event["reason"] for event in self.events[name] if "reason" in event]

    def model(self) -> torch.Tensor:
        """The final model of the server."""
        content, tensors = read_stored(self.folder / "server" / "checkpoint")
        return Progress.restored(content["progress"], tensors).result


class HandNode:
    """A node whose messages a test writes by hand, with the key of a real one."""

    def __init__(self, threads: Threads, name: str) -> None:
        self.terms, self.name, self.key = threads.terms, name, SECRETS[name]
        self.transport = threads.network.node(name)
        self.run = threads.terms.run_of(threads.terms.new_nonce())

    def send(self, kind: Kind, answers: str = "", round: int = 0, run: str | None = None, **parts: Any) -> bytes:
        message = Message(kind, self.run if run is None else run, round, self.name, SERVER, answers, **parts)
        data = seal(message, self.key)
        self.transport.send(data)
        return data

    def accept(self) -> None:
        self.send(Kind.HELLO, run="")
        assert self.next(Kind.TERMS)
        self.send(Kind.ACCEPT, self.terms.digest, content={"known": 0})

    def next(self, kind: Kind) -> Opened:
        """The next message of a kind."""
        until = time.monotonic() + WITHIN
        while time.monotonic() < until:
            data = self.transport.receive(1.0)
            if data is not None:
                opened = open_message(data, self.terms.register)
                if opened.message.kind is kind:
                    return opened
        raise AssertionError(f"no {kind} came")

    def reply(self, offer: Opened, message: torch.Tensor, **parts: Any) -> bytes:
        tensors = {"message": message}
        return self.send(Kind.REPLY, offer.digest, offer.message.round, content={"reply": {}}, tensors=tensors, **parts)
