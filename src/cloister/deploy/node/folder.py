"""A node's files, for its owner alone. The ledger is for all runs; the rest is one folder for each run.

ledger.jsonl                   what the data have spent, in all runs of all servers (`ledger.py`)
data.json                      fingerprints of the rows that the ledger was kept for
runs/RUN/agreed.json           the terms that the operator agreed to
runs/RUN/history.jsonl         the server's history, as far as this node was told
runs/RUN/head.json             the server's signature of it
runs/RUN/replies/              the newest reply with the node's state (`replies.py`)
runs/RUN/masked                secrets of a masked sum that is under way
runs/RUN/certificate.json      what was spent, signed; receipt.json: what the server told, signed by both
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cloister.deploy.certificates.chain import Chain, ChainFile
from cloister.deploy.node.history import Agreed
from cloister.deploy.node.ledger import NodeLedger
from cloister.deploy.node.replies import ReplyStore
from cloister.deploy.stored import make_private, write_bytes
from cloister.deploy.wire.canonical import canonical
from cloister.privacy.budgets import Budget
from cloister.runs.files import read_json


class NodeFolder:
    """The files of a node, which one process at a time has open."""

    def __init__(self, path: Path, limit: Budget | None, fingerprint: str) -> None:
        self.path = make_private(path)
        self.ledger = NodeLedger.open(path / "ledger.jsonl", limit)
        self._note_data(fingerprint)

    def _note_data(self, fingerprint: str) -> None:
        """Which rows the ledger was kept for. Rows that were added or changed go on with what the others have spent:
        that is never too little."""
        path = self.path / "data.json"
        known = read_json(path)["fingerprints"] if path.exists() else []
        if fingerprint not in known:
            write_bytes(path, canonical({"fingerprints": [*known, fingerprint]}))

    def run(self, run: str) -> RunFiles:
        """The files of one run."""
        return RunFiles(make_private(make_private(self.path / "runs") / run))

    def close(self) -> None:
        """Release the ledger."""
        self.ledger.close()


class RunFiles:
    """What a node keeps of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.history = ChainFile.open(path / "history.jsonl")
        self.replies = ReplyStore(path / "replies")

    @property
    def agreed(self) -> dict[str, Any] | None:
        """What the operator agreed to: the terms' digest, and where the history stood then."""
        path = self.path / "agreed.json"
        return read_json(path) if path.exists() else None

    def agree(self, digest: str, nonce: str, stands: Agreed) -> None:
        """Remember that the operator agreed, and where the history stood then."""
        write_bytes(self.path / "agreed.json", canonical({"terms": digest, "nonce": nonce, **asdict(stands)}))

    @property
    def stood(self) -> Agreed:
        """Where the history stood when the operator agreed."""
        agreed = self.agreed or {}
        return Agreed(int(agreed.get("length", 0)), str(agreed.get("head", "")))

    def adopt(self, told: Chain, signature: str) -> None:
        """Keep what the server told of its history, with its signature of the head."""
        known = len(self.history.chain)
        if len(told) > known:
            self.history.add(*told.links[known:])
        if len(told) > self.head["length"]:
            head = {"length": len(told), "head": told.head, "signature": signature}
            write_bytes(self.path / "head.json", canonical(head), durable=False)

    @property
    def head(self) -> dict[str, Any]:
        """The newest head that the server signed, and its signature."""
        path = self.path / "head.json"
        return read_json(path) if path.exists() else {"length": 0, "head": "", "signature": ""}

    def close(self) -> None:
        """Release the files."""
        self.history.close()
