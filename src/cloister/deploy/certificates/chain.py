"""The server's history as every node may see it: a chain of hashed links, whose newest hash (the head) it signs.

Each link commits to all before it. Every offer brings the head and the links that its node has not seen, so a node
checks that the history it is told extends the one it knew; and two nodes that kept their heads find out afterwards
whether they were told the same (`comparison.py`). Links, in order:

run     the run's name, the digest of the terms, the server's nonce
opened  a step is about to be offered: what it costs, and a digest of what everybody is told (the model among it)
closed  whether a step was released, or only charged
ended   why, and a digest of the final model

Who was asked and who answered is no part of it: where cohorts are drawn, that is a secret of the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from cloister.deploy.wire.canonical import canonical, digest_of
from cloister.deploy.wire.identity import PrivateKey, PublicKey
from cloister.errors import CloisterError, Corrupted
from cloister.privacy.ledger_file import Appending, hashed, line_hash, open_locked, read_hashed, write_again
from cloister.runs.files import sync_folder

Link = Mapping[str, Any]
_LOST = "the history can no longer be compared with what nodes were told"


@dataclass
class Chain:
    """Links, with the hash of each. `head` commits to all of them."""

    links: list[dict[str, Any]] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """The newest hash; empty before the first link."""
        return self.hashes[-1] if self.hashes else ""

    def __len__(self) -> int:
        return len(self.links)

    def add(self, link: Link) -> None:
        """One more link."""
        self.hashes.append(line_hash(self.head, dict(link)))
        self.links.append(dict(link))

    @classmethod
    def of(cls, links: Sequence[Link]) -> Self:
        """The chain that some links make."""
        chain = cls()
        for link in links:
            chain.add(link)
        return chain

    def told(self, first: int, links: Sequence[Link]) -> Chain:
        """The history that links from number `first` on tell; refused where they leave a gap or contradict this one."""
        if not 0 <= first <= len(self):
            raise MissingLinks(
                f"Expected links of the server's history from number {len(self)} on, found them from {first} on: "
                "ask for the missing ones."
            )
        found = Chain(self.links[:first], self.hashes[:first])
        for link in links:
            found.add(link)
        known = min(len(self), len(found))
        if self.hashes[:known] != found.hashes[:known]:
            raise OtherHistory(
                f"Expected the server's history to extend the one that this node knows (head {self.head[:12]}), found "
                f"another one (head {found.head[:12]}): leave this run, and compare receipts with the other nodes."
            )
        return found

    def step(self, round: int, what: str, kind: str = "opened") -> dict[str, Any] | None:
        """The link that opened (or closed) a step, if there is one."""
        wanted = (kind, round, what)
        return next((x for x in reversed(self.links) if (x["link"], x.get("round"), x.get("what")) == wanted), None)


class MissingLinks(CloisterError):
    """A server tells a part of its history that does not begin where what is known ends."""


class OtherHistory(CloisterError):
    """A server tells a history that does not extend the one it told before."""


def signed_head(run: str, chain: Chain, key: PrivateKey) -> str:
    """The server's signature of where its history stands, as text."""
    return key.sign(_statement(run, len(chain), chain.head)).hex()


def expect_signed(run: str, chain: Chain, signature: str, key: PublicKey) -> None:
    """Refuse a head that the server did not sign."""
    try:
        raw = bytes.fromhex(signature)
    except ValueError:
        raw = b""
    if not key.verify(_statement(run, len(chain), chain.head), raw):
        raise CloisterError(
            f"Expected the server's signature of the head {chain.head[:12]} of its history, found another: refuse it."
        )


def _statement(run: str, length: int, head: str) -> bytes:
    return f"cloister head 1\n{run}\n{length}\n{head}".encode()


def offer_digest(content: Mapping[str, Any], body_sha256: str) -> str:
    """Of what every member is told, the tensors by the hash of their body: the link `opened` has it, so that all of
    them are told the same."""
    return digest_of(canonical(dict(content)) + body_sha256.encode())


class ChainFile:
    """A chain on disk, append-only; a link counts once `add` has returned."""

    def __init__(self, path: Path) -> None:
        self.chain = Chain()
        self._file = Appending(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The chain at a path, verified, or a new one; this process alone may add to it."""
        found = cls(path)
        new = not path.exists()
        descriptor = open_locked(path, os.O_CREAT)
        found._file.descriptor = descriptor
        try:
            if new:
                sync_folder(path.parent)
            else:
                lines = read_hashed(path, _LOST)
                write_again(path, descriptor, lines.data)
                found.chain = Chain(lines.contents, lines.hashes)
        except BaseException:
            os.close(descriptor)
            raise
        return found

    def add(self, *links: Link) -> None:
        """More links, on the disk when this returns."""
        head, lines = self.chain.head, b""
        for link in links:
            line, head = hashed(head, dict(link))
            lines += line
        self._file.append(lines)
        self._file.sync()
        for link in links:
            self.chain.add(link)

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def read_chain(path: Path) -> Chain:
    """A chain from a file, verified."""
    if not path.is_file():
        raise Corrupted(f"Expected the server's history at {path}, found none: name the folder of a run.")
    lines = read_hashed(path, _LOST)
    return Chain(lines.contents, lines.hashes)
