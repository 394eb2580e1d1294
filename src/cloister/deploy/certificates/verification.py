"""`verify`: whether certificates and receipts of a federation are as they were signed, and tell one history.

A server that shows two nodes different histories signs both heads. Each node's receipt has the history it was told with
that signature, so two receipts side by side prove it, to anybody who knows the server's key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.deploy.certificates import words
from cloister.deploy.certificates.chain import Chain, expect_signed
from cloister.deploy.certificates.node_certificate import node_text
from cloister.deploy.certificates.server_certificate import model_files_hash, server_text
from cloister.deploy.certificates.signed import (
    NODE,
    NOT_PRIVATE,
    RECEIPT,
    SERVER,
    document_bytes,
    read_document,
    signer_of,
)
from cloister.deploy.halves.schedule import expect_step
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.halves.steps import Step
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.identity import PublicKey
from cloister.errors import CloisterError
from cloister.privacy.accounts import Account
from cloister.privacy.events import Event, from_json
from cloister.runs.files import read_bytes


@dataclass
class Verification:
    """What was found: `wrong` is empty where everything agrees."""

    confirmed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong


@dataclass(frozen=True)
class _Told:
    """A history that the server signed, and who has it."""

    whose: str
    run: str
    chain: Chain
    server: PublicKey


def verify(files: Sequence[Path | str], terms: Terms | None = None) -> Verification:
    """Check certificates and receipts, and compare what servers told; with terms, keys are those of the terms."""
    found, told = Verification(), []
    for name in files:
        path = Path(name)
        try:
            document = read_document(path)
            signer = signer_of(document, str(path))
            _expect_bytes(path, document)
            _expect_known(document, signer, terms)
            told += _one(path, document, signer, found, terms)
        except CloisterError as error:
            found.wrong.append(f"{path}: {error}")
    if terms is None:
        found.notes.append("keys were taken from the files themselves; with the terms they are checked as well")
    _compare(told, found)
    return found


def _expect_bytes(path: Path, document: Mapping[str, Any]) -> None:
    """Every byte is as it was written: also those that mean nothing, and those of the text beside it."""
    if read_bytes(path) != document_bytes(document):
        raise CloisterError("Expected a document as Cloister writes it, found other bytes: it was changed.")
    text, beside = _TEXTS.get(document["format"]), path.with_name("certificate.txt")
    there = path.name == "certificate.json" and beside.is_file()
    if there and text is not None and read_bytes(beside) != (text(document) + "\n").encode():
        raise CloisterError("Expected what certificate.json says in certificate.txt beside it, found other words.")


_TEXTS = {NODE: node_text, SERVER: server_text}


def _expect_known(document: Mapping[str, Any], signer: PublicKey, terms: Terms | None) -> None:
    """The signer is who the terms say."""
    if terms is None:
        return
    name = "server" if document["format"] == SERVER else str(document.get("node"))
    wanted = terms.register.key_of(name)
    if wanted != signer:
        raise CloisterError(
            f"Expected the key {wanted.fingerprint} of {name}, found {signer.fingerprint}: somebody else signed it."
        )
    if document["format"] == RECEIPT and document.get("server") != terms.register.server.text:
        raise CloisterError(
            f"Expected a history of the server {terms.register.server.fingerprint}, found that of another key: it says "
            "nothing of this federation."
        )
    if document.get("terms") != terms.digest:
        raise CloisterError(
            f"Expected the terms {terms.digest[:12]}, found {str(document.get('terms'))[:12]}: it belongs to others."
        )


def _one(
    path: Path, document: Mapping[str, Any], signer: PublicKey, found: Verification, terms: Terms | None
) -> list[_Told]:
    """One document that is as it was signed; the history in it, if there is one."""
    if document.get("test_mode"):
        found.notes.append(f"{path}: {NOT_PRIVATE}")
    if document["format"] == NODE:
        spent = words.spent_words(document["run"])
        found.confirmed.append(f"{path}: signed by {document['node']}, which states {spent} in this run")
        return []
    server = signer if document["format"] == SERVER else PublicKey.from_text(str(document["server"]))
    chain = Chain.of(document["links"])
    if chain.head != document["head"]:
        raise CloisterError("Expected links with the head that is stated, found others: ask for it again.")
    if chain.links:
        expect_signed(str(document["run"]), chain, str(document["server_signature"]), server)
    if document["format"] == SERVER:
        _expect_price(document, chain, terms)
        _look_at_model(path, document, found)
        whence = "them" if terms is None else "them and from the terms"
        found.confirmed.append(f"{path}: signed by the server, {len(chain)} links, the price follows from {whence}")
        return [_Told("the server", document["run"], chain, server)]
    found.confirmed.append(f"{path}: signed by {document['node']} and, for {len(chain)} links, by the server")
    return [_Told(str(document["node"]), document["run"], chain, server)]


def _look_at_model(path: Path, document: Mapping[str, Any], found: Verification) -> None:
    """The model's files beside a server's certificate are those that it signed. (A certificate may travel alone.)"""
    stated, there = document.get("model_files"), model_files_hash(path.parent)
    if there is None and stated is not None:
        found.notes.append(f"{path}: the model's files, which it names, are not in model/ beside it")
    elif there != stated:
        raise CloisterError("Expected the files in model/ beside it that the server signed, found others: refuse them.")
    elif there is not None:
        found.confirmed.append(f"{path}: the certificate in model/ is the one that the server signed")


def _expect_price(document: Mapping[str, Any], chain: Chain, terms: Terms | None) -> None:
    """What the server says was spent is what its history charges, computed afresh; and with the terms, what they cost.

    A history has what its server wrote into it. What a step costs follows from the terms.
    """
    price = document.get("price")
    wanted = None if terms is None else _costs(terms, chain)
    if price is None:
        if wanted:
            raise CloisterError("Expected a price, since these terms protect clients, found none: do not rely on it.")
        return
    events: Counter[Event] = Counter()
    for link in chain.links:
        for cost in link.get("charged", ()):
            events[from_json(cost["event"])] += cost["count"]
    if terms is not None and price["delta"] != words.delta_of(terms):
        raise CloisterError(f"Expected a price at the terms' delta, found {price['delta']:g}: do not rely on it.")
    for whence, cost in (("the history", events), ("what the terms say of its steps", wanted)):
        if cost is not None:
            _expect_at_least(price, words.price(Account("client", None, cost), price["delta"])["epsilon"], whence)


def _expect_at_least(price: Mapping[str, Any], computed: float | None, whence: str) -> None:
    stated = price["epsilon"]
    same = computed is None if stated is None else computed is not None and stated >= computed * (1 - 1e-6)
    if not same:
        raise CloisterError(f"Expected epsilon {computed}, which {whence} comes to, found {stated}: do not rely on it.")


def _costs(terms: Terms, chain: Chain) -> Counter[Event]:
    """What the steps of a history cost an account of the server's, by the terms."""
    public = None if terms.public is None else terms.samples.blank(64)  # no price depends on what they are
    half, events = ServerHalf.of(terms, "", public), Counter[Event]()
    for link in chain.links:
        if link.get("link") == "opened":
            step = Step(link["round"], link["what"])
            expect_step(half.steps, step)
            for charge in half.charges(step).values():
                events[charge.event] += charge.count
    return events


def _compare(told: Sequence[_Told], found: Verification) -> None:
    """Two histories of one run agree as far as both go, or the server showed two."""
    for at, one in enumerate(told):
        for other in told[at + 1 :]:
            if (one.run, one.server) != (other.run, other.server):
                found.notes.append(f"{one.whose} and {other.whose} have different runs or servers: not compared")
                continue
            both = min(len(one.chain), len(other.chain))
            pairs = zip(one.chain.hashes[:both], other.chain.hashes[:both], strict=True)
            differs = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            if differs is None:
                found.confirmed.append(f"{one.whose} and {other.whose} were told one history ({both} links compared)")
            else:
                found.wrong.append(
                    f"THE SERVER SHOWED TWO HISTORIES: {one.whose} and {other.whose} have its signature under "
                    f"different ones from link {differs} on ({_shown(one.chain.links[differs])}; "
                    f"{_shown(other.chain.links[differs])})"
                )


def _shown(link: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {str(value)[:20]}"
        for name, value in link.items()
        if name in ("link", "round", "what", "offer", "model", "released")
    )
