"""Masked sums played from the first key to the last share, with nodes that get lost where a test wants it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cloister.deploy.masking import MaskedSum, MaskingNode, MaskingServer, MaskSettings, Session
from cloister.deploy.wire.identity import PrivateKey, Register

STAGES = ("keys", "shares", "masked", "agree", "unmask")


@cache
def key_of(name: str) -> PrivateKey:
    return PrivateKey.from_seed(hashlib.sha256(name.encode()).digest())


@cache
def register_of(nodes: int) -> Register:
    names = [f"n{number}" for number in range(nodes)]
    return Register(key_of("the server").public, {name: key_of(name).public for name in names})


def session_of(nodes: int, asked: Collection[str] | None = None, **given: Any) -> Session:
    names = tuple(register_of(nodes).names if asked is None else asked)
    about = {"run": "run", "round": 3, "step": "update", "about": "offer"}
    about |= {name: given.pop(name) for name in tuple(about) if name in given}
    return Session(asked=names, settings=MaskSettings(**{"length": 50, "bits": 16, **given}), **about)


def numbers(session: Session, seed: int = 0) -> dict[str, Tensor]:
    """A vector for every node, over all of the range and beyond."""
    drawn = torch.Generator().manual_seed(seed)
    reach = 2 ** min(62, session.settings.bits)
    shape = (session.settings.length,)
    return {name: torch.randint(-reach, reach, shape, generator=drawn) for name in session.asked}


def expected_sum(vectors: Collection[Tensor], bits: int) -> list[int]:
    """The modular sum in Python's whole numbers: nothing in common with how masks are added."""
    half, modulus = 2 ** (bits - 1), 2**bits
    columns = zip(*(vector.tolist() for vector in vectors), strict=True)
    return [(sum(column) + half) % modulus - half for column in columns]


Change = Callable[[str, str, Any], Any]
"""What becomes of an answer: its stage, the node's name, the answer."""


@dataclass
class Play:
    """One session with all its nodes; `lost` maps a stage to the nodes that answer no more from there on."""

    session: Session
    register: Register
    lost: Mapping[str, Collection[str]] = field(default_factory=dict)
    change: Change = lambda stage, name, answer: answer
    restart: Collection[str] = ()
    """Stages before which all nodes start again from their stored state."""
    shuffle: int = 0

    def __post_init__(self) -> None:
        self.nodes = {name: MaskingNode(self.session, name, key_of(name), self.register) for name in self.session.asked}
        self.server = MaskingServer(self.session, self.register)
        self.sent: dict[str, dict[str, Any]] = {stage: {} for stage in STAGES}
        self.told: dict[str, Any] = {}

    def _answers(self, stage: str, ask: Callable[[str, MaskingNode], Any], take: Callable[[str, Any], None]) -> None:
        for name in self.lost.get(stage, ()):
            self.nodes.pop(name, None)
        if stage in self.restart:
            self.nodes = {
                name: MaskingNode(self.session, name, key_of(name), self.register, node.to_bytes())
                for name, node in self.nodes.items()
            }
        order = sorted(self.nodes)
        random.Random(self.shuffle).shuffle(order)
        for name in order:
            answer = self.change(stage, name, ask(name, self.nodes[name]))
            if answer is not None:
                self.sent[stage][name] = answer
                take(name, answer)

    def keys(self) -> None:
        self._answers("keys", lambda _, node: node.keys(), self.server.take_keys)
        self.told["roster"] = self.server.roster()

    def shares(self) -> None:
        self._answers("shares", lambda _, node: node.shares(self.told["roster"]), self.server.take_shares)
        self.told["mailboxes"] = self.server.mailboxes()

    def masked(self, vectors: Mapping[str, Tensor]) -> None:
        boxes = self.told["mailboxes"]
        self._answers(
            "masked",
            lambda name, node: node.masked(boxes[name], vectors[name]),
            lambda name, answer: self.server.take_masked(name, *answer),
        )
        self.told["survivors"] = self.server.survivors()

    def agree(self) -> None:
        self._answers("agree", lambda _, node: node.agree(self.told["survivors"]), self.server.take_consent)
        self.told["consents"] = self.server.consents()

    def unmask(self) -> None:
        self._answers("unmask", lambda _, node: node.unmask(self.told["consents"]), self.server.take_unmask)

    def until(self, stage: str, vectors: Mapping[str, Tensor] | None = None) -> Play:
        """Play the stages before this one."""
        vectors = numbers(self.session) if vectors is None else vectors
        for one in STAGES[: STAGES.index(stage)]:
            self.masked(vectors) if one == "masked" else getattr(self, one)()
        return self

    def finish(self, vectors: Mapping[str, Tensor] | None = None) -> MaskedSum:
        self.until("unmask", vectors).unmask()
        return self.server.finish()


def play(nodes: int, lost: Mapping[str, Collection[str]] | None = None, **given: Any) -> Play:
    how = {name: given.pop(name) for name in ("change", "restart", "shuffle") if name in given}
    return Play(session_of(nodes, **given), register_of(nodes), lost or {}, **how)
