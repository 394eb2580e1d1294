"""Federations on one machine, as processes or threads on loopback with TLS and keys: what two benchmarks share."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloister.deploy.halves import NodeHalf, Rows, ServerHalf
from cloister.deploy.node import NodeLedger, NodeResult, join
from cloister.deploy.node.ledger import Paid
from cloister.deploy.operation.large_blocks import keep_large_blocks
from cloister.deploy.operation.tls_certificates import write_tls
from cloister.deploy.server import ServerResult, serve
from cloister.deploy.terms import Terms
from cloister.deploy.transport.https import HttpsLimits, HttpsNode, HttpsServer, TlsFiles
from cloister.deploy.wire.identity import PrivateKey
from cloister.privacy.ledger import Ledger

FORK = multiprocessing.get_context("fork")  # torch is imported once, and each process still has its own memory
FEATURES = 13


@dataclass(frozen=True)
class Place:
    """A federation's folder, terms, keys and TLS files."""

    folder: Path
    terms: Terms
    keys: Mapping[str, PrivateKey]
    tls: Any
    port: int
    rows: int
    shape: tuple[int, ...] = (FEATURES,)

    @property
    def names(self) -> tuple[str, ...]:
        """The nodes."""
        return self.terms.register.names

    def data(self, name: str) -> Rows:
        """Made-up rows of one node."""
        random = np.random.default_rng(self.names.index(name))
        labels = random.integers(0, self.terms.samples.classes or 2, self.rows)
        inputs = random.normal(size=(self.rows, *self.shape)).astype(np.float32)
        return Rows.of(
            inputs + labels.reshape(-1, *[1] * len(self.shape)).astype(np.float32), labels, self.terms.samples
        )

    def warm(self) -> None:
        """Import and price everything once: processes that are forked from here start in no time."""
        run = self.terms.run_of("warm")
        server = ServerHalf.of(self.terms, run)
        step = server.next_step()
        assert step is not None
        offer = server.offer(step, tuple(range(len(self.names))))
        for name in self.names[:3]:
            half = NodeHalf.of(self.terms, run, name, self.data(name))
            half.answer(offer)
            ledger = NodeLedger(Ledger.create(None, "warm", {}), None)
            charge = half.charges(step, offer)
            if charge is not None:
                ledger.charge(Paid("warm", 1, "update", "warm"), half.side.fed.unit, charge)
                ledger.spent(1e-3)

    def server_transport(self) -> HttpsServer:
        """Listens on loopback."""
        files = TlsFiles(self.tls.certificate, self.tls.key)
        limits = HttpsLimits.for_model(self.parameters, len(self.names))
        return HttpsServer(self.terms.register, "127.0.0.1", self.port, files, limits)

    @property
    def parameters(self) -> int:
        """No model here has more."""
        return 12_000_000

    def node_transport(self, name: str) -> HttpsNode:
        """Of a node."""
        return HttpsNode(f"https://127.0.0.1:{self.port}", name, self.keys[name], self.tls.authority)

    def serve(self, on_event: Any = None, stop: threading.Event | None = None, folder: str = "server") -> ServerResult:
        """The server, to its end."""
        transport = self.server_transport()
        try:
            return serve(self.terms, self.keys["server"], transport, self.folder / folder, on_event=on_event, stop=stop)
        finally:
            transport.close()

    def join(self, name: str, on_event: Any = None, stop: threading.Event | None = None, **more: Any) -> NodeResult:
        """A node, to its end."""
        transport = more.pop("transport", None) or self.node_transport(name)
        try:
            return join(
                self.terms,
                self.keys[name],
                transport,
                self.data(name),
                self.folder / name,
                None,
                lambda agreement: True,
                on_event=on_event,
                stop=stop,
                **more,
            )
        finally:
            transport.close()


def place(
    folder: Path,
    values: Mapping[str, Any],
    nodes: int,
    rows: int = 64,
    classes: int = 2,
    shape: tuple[int, ...] = (FEATURES,),
    **federation: Any,
) -> Place:
    """A new federation in a folder."""
    names = [f"node{number:03d}" for number in range(nodes)]
    keys = {name: PrivateKey.generate() for name in ("server", *names)}
    who = {
        "name": "benchmark",
        "server_key": keys["server"].public.text,
        "nodes": {name: keys[name].public.text for name in names},
        "test_mode": True,
        **federation,
    }
    samples = {"shape": list(shape), "classes": classes}
    terms = Terms.from_tables({**values, "federation": who, "samples": samples})
    folder.mkdir(parents=True, exist_ok=True)
    return Place(folder, terms, keys, write_tls(folder / "tls", ["127.0.0.1"], "benchmark"), free_port(), rows, shape)


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def one_thread() -> None:
    """Several processes share the cores: each of them computes with one thread. Memory is kept as commands keep it."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    torch.set_num_threads(1)
    keep_large_blocks()
