"""Small federations in one process, of which every body goes through safetensors bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cloister.client.population import Population
from cloister.deploy.halves import NodeHalf, OfferBody, ReplyBody, Rows, ServerHalf
from cloister.deploy.halves.prepared import request_of
from cloister.deploy.terms import Terms
from cloister.deploy.wire.bodies import pack, unpack
from cloister.deploy.wire.identity import PrivateKey
from cloister.engine import Loop
from cloister.privacy.ledger import Ledger
from cloister.random.streams import Streams
from cloister.round import run_round
from cloister.runs.prepare import Ready, prepare
from cloister.runs.private_validation import private_validation
from cloister.runs.request import Request
from cloister.runs.selection import Kept
from cloister.runs.statistics import first_answer, statistics

SIZES = (7, 3, 12, 5)
NAMES = ("ann", "bob", "cid", "dan")
KEYS = [PrivateKey.generate().public.text for _ in range(len(NAMES) + 1)]
PFL: dict[str, Any] = {
    "method": "pfl",
    "clip_norm": 1.0,
    "lr": 0.5,
    "batch_size": 4,
    "noise_multiplier": 1.3,
    "delta": 1e-3,
}
FEDAVG: dict[str, Any] = {
    "method": "dp_fedavg",
    "clip_norm": 0.5,
    "lr": 0.5,
    "batch_size": 4,
    "local_steps": 2,
    "epsilon": 4.0,
    "delta": 1e-3,
    "cohort": "poisson",
    "sampling_rate": 0.5,
    "allow_large_delta": True,
}


def tables(values: Mapping[str, Any], samples: Mapping[str, Any] | None = None, **federation: Any) -> dict[str, Any]:
    """The content of a file of terms, of four nodes, in test mode unless that is said otherwise."""
    who = {"name": "toy", "server_key": KEYS[0], "nodes": dict(zip(NAMES, KEYS[1:], strict=True)), "test_mode": True}
    rows = samples or {"shape": [6], "classes": 3}
    return {"rounds": 3, **values, "federation": {**who, **federation}, "samples": rows}


def terms_of(values: Mapping[str, Any], samples: Mapping[str, Any] | None = None, **federation: Any) -> Terms:
    return Terms.from_tables(tables(values, samples, **federation))


def data_of(client: int, size: int, features: int = 6) -> tuple[Any, Any]:
    random = np.random.default_rng(client)
    labels = random.integers(0, 3, size)
    return (random.normal(size=(size, features)) + labels[:, None]).astype(np.float32), labels


def quick_first(cases: Iterable[Any]) -> list[Any]:
    """The cases of a test: the first in every run of the tests, the others in `make test-all`."""
    first, *others = cases
    return [first, *(pytest.param(one, marks=pytest.mark.slow) for one in others)]


class Toy:
    """A server and its nodes, played step by step."""

    def __init__(self, terms: Terms, sizes: tuple[int, ...] = SIZES, public: Any = None) -> None:
        self.terms, self.run = terms, terms.run_of(terms.new_nonce())
        self.server = ServerHalf.of(terms, self.run, public)
        self.nodes = [
            NodeHalf.of(terms, self.run, name, Rows.of(*data_of(client, size), terms.samples), public=public)
            for client, (name, size) in enumerate(zip(NAMES, sizes, strict=True))
        ]

    def play(self) -> torch.Tensor:
        """To the end; the final model."""
        while self.step():
            pass
        return self.server.progress.result

    def step(self) -> bool:
        """One step, whose offer and replies are sent as bytes; whether there was one."""
        step = self.server.next_step()
        if step is None:
            return False
        offer = through_bytes(self.server.offer(step, self.server.members(step)))
        replies = [through_bytes(one) for node in self.nodes for one in self.reply(node, offer)]
        self.server.close(step, offer, replies)
        return True

    def reply(self, node: NodeHalf, offer: OfferBody) -> list[ReplyBody]:
        if node.client not in offer.asked or not node.participates(offer.step):
            return []
        node.expect_offer(offer)
        found, node.node_state = node.answer(offer)
        return [found]


def through_bytes(body: Any) -> Any:
    """The same offer or reply, after its tensors were bytes."""
    return type(body)(**{**vars(body), "tensors": unpack(pack(body.tensors))})


def ready_of(terms: Terms, public: Any = None, sizes: tuple[int, ...] = SIZES) -> Ready:
    """The run with everybody's data in one process, prepared as every simulation is, with the federation's draws."""
    shell = request_of(terms, public)
    parts = [data_of(client, size) for client, size in enumerate(sizes)]
    inputs, labels = (torch.cat([torch.from_numpy(part[place]) for part in parts]) for place in (0, 1))
    counts = torch.tensor(sizes)
    task = replace(shell.task, population=Population(inputs, labels, counts.cumsum(0) - counts, counts))
    method = terms.parts.make("method", **terms.parts.make_if_chosen("server"))
    options = replace(shell.options, secure_rng=False)
    target = shell.epsilon, shell.delta
    ready = prepare(Request(method, task, shell.rounds, shell.cohort, *target, shell.model, options))
    return replace(ready, fed=replace(ready.fed, streams=Streams(options.seed, run=f"test {terms.digest}")))


def simulated(terms: Terms, public: Any = None, sizes: tuple[int, ...] = SIZES) -> torch.Tensor:
    """The final model of that run, asked and trained as every simulation is."""
    ready = ready_of(terms, public, sizes)
    ledger, w, state, kept = Ledger.create(None, "test", {}), ready.w, ready.fed.method.init(ready.w), Kept()
    if ready.standardization is not None:
        statistics(ready, ledger)
    if ready.fed.method.first_query is not None:
        first_answer(ready, ledger)
    for number in range(1, terms.rounds + 1):
        w, state, *_ = run_round(ready.fed, ledger, Loop(), number, w, state)
        kept = ready.selection.averaged(kept, number, w)
        newest = w if kept.average is None else kept.average
        every = ready.selection.every
        if ready.held_out is not None and (number % every == 0 or number == terms.rounds):
            value = private_validation(ready, ledger, ready.held_out, number, newest)
            kept = ready.selection.judged(kept, number, newest, value)
    return newest if kept.best is None else kept.best
