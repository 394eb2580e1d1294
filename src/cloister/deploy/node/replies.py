"""Replies that a node has computed, by the digest of the offer: the same offer gets the same bytes.

A file holds the sealed reply and what the node keeps for the next rounds, so that both are there or neither is. Only
the newest file of a run is kept: an offer of a step that is over is not answered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloister.deploy.stored import make_private, read_about, read_stored, write_stored

_REPLY = "reply"
_STATE = "state."


@dataclass(frozen=True)
class StoredReply:
    """A reply as it was sent, and the node's state after it."""

    offer: str
    round: int
    what: str
    data: bytes
    content: Mapping[str, Any] = field(default_factory=dict)
    """The node's state: small values ..."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """... and tensors."""


class ReplyStore:
    """The replies of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = make_private(folder)

    def write(self, reply: StoredReply) -> None:
        """Keep a reply, on the disk when this returns; the one before is dropped."""
        number = 1 + max(self._numbers(), default=0)
        about = {"offer": reply.offer, "round": reply.round, "what": reply.what, "state": dict(reply.content)}
        raw = torch.frombuffer(bytearray(reply.data), dtype=torch.uint8)
        tensors = {_REPLY: raw, **{_STATE + name: tensor for name, tensor in reply.tensors.items()}}
        write_stored(self._path(number), about, tensors)
        for old in self._numbers():
            if old < number:
                self._path(old).unlink(missing_ok=True)

    def newest(self) -> StoredReply | None:
        """The last reply; None before the first."""
        numbers = self._numbers()
        if not numbers:
            return None
        about, tensors = read_stored(self._path(max(numbers)))
        data = tensors.pop(_REPLY).numpy().tobytes()
        state = {name.removeprefix(_STATE): tensor for name, tensor in tensors.items()}
        return StoredReply(about["offer"], about["round"], about["what"], data, about["state"], state)

    def about(self) -> dict[str, Any] | None:
        """To which offer of which step the last reply is; None before the first. Its numbers are not read."""
        numbers = self._numbers()
        return read_about(self._path(max(numbers))) if numbers else None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.reply"

    def _numbers(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.reply")]
