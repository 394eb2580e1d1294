"""A server's run on disk. Whatever was about to happen when the process was killed, the files say how to go on:

run.json          the nonce, and the terms as they were when the run began
history.jsonl     the chain of links that every node may see (`certificates/chain.py`)
ledger.jsonl      what was released, where clients are protected; charged before an offer leaves
offer             the step that is open: who is asked, and what they are told; the same bytes are sent again
replies/          what came back, as it was signed; removed when the step is closed, for it may be exact
checkpoint        the model and all that the next step needs, with the link that closes the last one
accepted/, statements/    what nodes signed: that they take part, and what they have spent
answers/          the newest answer of each node without its numbers: a node on an old copy of its ledger is told of it
status.json       for people
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from cloister.deploy.certificates.chain import ChainFile
from cloister.deploy.halves.steps import OfferBody, Step
from cloister.deploy.ledger_files import open_or_create
from cloister.deploy.stored import make_private, read_stored, write_bytes, write_stored
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.messages import header_of
from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Ledger
from cloister.runs.files import read_json, write_json

_FORMAT = "cloister federation 1"
_MOST_KEPT = 16 * 2**20
"""Bytes of the largest reply that is kept on disk until its step is closed."""


class ServerFolder:
    """The files of one run, which one server at a time has open."""

    def __init__(self, path: Path, terms: Terms) -> None:
        self.path = make_private(path)
        self.nonce = self._begun(terms)
        self.run = terms.run_of(self.nonce)
        for name in ("replies", "accepted", "statements", "answers"):
            make_private(path / name)
        self.history = ChainFile.open(path / "history.jsonl")
        self.ledger: Ledger | None = None

    def _begun(self, terms: Terms) -> str:
        """The run's nonce; refuses to go on under other terms than those that nodes agreed to."""
        path = self.path / "run.json"
        if not path.exists():
            nonce = terms.new_nonce()
            write_json(path, {"format": _FORMAT, "nonce": nonce, "digest": terms.digest, "terms": terms.to_json()})
            return nonce
        found = read_json(path)
        if found.get("digest") != terms.digest:
            raise CloisterError(
                f"Expected the terms {str(found.get('digest'))[:12]} with which the run in {self.path} began, found "
                f"{terms.digest[:12]}: nodes agreed to the former, so restore them, or choose another folder."
            )
        return str(found["nonce"])

    def open_ledger(self, budgets: Mapping[str, Budget]) -> Ledger:
        """The server's ledger."""
        self.ledger = open_or_create(self.path / "ledger.jsonl", self.run, budgets)
        return self.ledger

    def close(self) -> None:
        """Release the files."""
        self.history.close()
        if self.ledger is not None:
            self.ledger.close()

    # The step that is open.

    def write_offer(self, members: tuple[int, ...], body: OfferBody, first: Mapping[str, int], model: Tensor) -> None:
        """Keep an offer before it leaves: the same bytes are sent again, whatever happens. `first`: which link of the
        history each node is told first. What is the `model` of the checkpoint is not written a second time."""
        known = sorted(name for name, tensor in body.tensors.items() if tensor is model)
        about = {
            "round": body.step.round,
            "what": body.step.what,
            "members": list(members),
            "asked": list(body.asked),
            "content": dict(body.content),
            "first": dict(first),
            "known": known,
        }
        others = {name: tensor for name, tensor in body.tensors.items() if name not in known}
        write_stored(self.path / "offer", about, others)

    def read_offer(self, step: Step, model: Tensor) -> tuple[tuple[int, ...], OfferBody, dict[str, int]] | None:
        """What `write_offer` kept for a step, if it did."""
        if not (self.path / "offer").exists():
            return None
        about, tensors = read_stored(self.path / "offer")
        if (about["round"], about["what"]) != (step.round, step.what):
            return None
        whole = {**tensors, **dict.fromkeys(about["known"], model)}
        body = OfferBody(step, tuple(about["asked"]), about["content"], whole)
        return tuple(about["members"]), body, about["first"]

    def write_reply(self, node: str, data: bytes) -> None:
        """Keep what a node replied. It need not reach the disk, and a large one is not kept at all: after a restart a
        node sends the same bytes again."""
        if len(data) <= _MOST_KEPT:
            write_bytes(self.path / "replies" / node, data, durable=False)

    def read_replies(self) -> list[bytes]:
        """What nodes have replied to the step that is open."""
        return [path.read_bytes() for path in sorted((self.path / "replies").iterdir()) if path.name[0] != "."]

    def drop_replies(self) -> None:
        """The step is closed: what nodes sent is no longer needed, and nobody else's business."""
        shutil.rmtree(self.path / "replies")
        make_private(self.path / "replies")

    # Where the run stands.

    def write_checkpoint(self, content: Mapping[str, Any], tensors: Mapping[str, Any], link: Mapping[str, Any]) -> None:
        """The state after a step, and the link with which the history goes on."""
        write_stored(self.path / "checkpoint", {"progress": dict(content), "link": dict(link)}, tensors)

    def read_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]] | None:
        """The progress (values and tensors) and the link; None before the first step is closed."""
        if not (self.path / "checkpoint").exists():
            return None
        content, tensors = read_stored(self.path / "checkpoint")
        return content["progress"], tensors, content["link"]

    # What nodes signed.

    def write_signed(self, kind: str, node: str, data: bytes) -> None:
        """Keep a signed message, as evidence."""
        write_bytes(self.path / kind / node, data)

    def write_answer(self, node: str, data: bytes) -> None:
        """Keep that a node answered, with its signature and without its numbers. It need not reach the disk: that is
        for the node's own good, and survives this process."""
        write_bytes(self.path / "answers" / node, header_of(data), durable=False)

    def read_answer(self, node: str) -> bytes:
        """What `write_answer` kept; empty before a node's first answer."""
        path = self.path / "answers" / node
        return path.read_bytes() if path.exists() else b""

    def read_signed(self, kind: str) -> dict[str, bytes]:
        """The messages that were kept, by node."""
        return {path.name: path.read_bytes() for path in (self.path / kind).iterdir() if path.name[0] != "."}

    def write_status(self, status: Mapping[str, Any]) -> None:
        """For people: replaced in one step, so that whoever reads it finds one whole."""
        write_bytes(self.path / "status.json", json.dumps(status, indent=1).encode(), durable=False)
