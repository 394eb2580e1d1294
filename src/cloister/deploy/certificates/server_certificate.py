"""The server's certificate: what was released, at what price, signed by it; and what the nodes say to have spent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.deploy.certificates import words
from cloister.deploy.certificates.chain import signed_head
from cloister.deploy.certificates.signed import NOT_PRIVATE, SERVER, signed, write_document
from cloister.deploy.halves.server_half import ServerHalf
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.messages import open_message
from cloister.privacy.accounts import Account, accounts_of
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.files import read_bytes, write_atomically

if TYPE_CHECKING:
    from cloister.deploy.server.folder import ServerFolder


def server_certificate(terms: Terms, half: ServerHalf, folder: ServerFolder, key: PrivateKey) -> dict[str, Any]:
    """What was released, from the ledger, the history and what nodes signed."""
    chain, unit = folder.history.chain, half.unit
    assert folder.ledger is not None
    account = accounts_of(folder.ledger).get(unit.value, Account(unit.value, None))
    delta = words.delta_of(terms)
    statements = _statements(terms, folder)
    client = unit is ProtectedUnit.CLIENT
    everybody = bool(statements) and set(folder.read_signed("accepted")) <= set(statements)
    stated = everybody and all(one["private"] is True for one in statements.values())
    private = words.protects(account) if client else stated
    early = half.progress.stopped is not None
    closed = [link for link in chain.links if link["link"] == "closed"]
    return signed(
        {
            "format": SERVER,
            "federation": terms.federation.name,
            "method": str(terms.values.get("method")),
            "run": folder.run,
            "terms": terms.digest,
            "test_mode": terms.test_mode,
            "private": private and not terms.test_mode,
            "unit": unit.value,
            "rounds_planned": terms.rounds,
            "steps_released": sum(bool(link["released"]) for link in closed),
            "steps_not_released": [[link["round"], link["what"]] for link in closed if not link["released"]],
            "price": words.run_price(account, delta, half.budgets.get(unit), early) if client else None,
            "nodes": statements,
            "without_statement": [name for name in terms.register.names if name not in statements],
            "trusted": words.trusted(half.side),
            "hidden_by_masks": words.hidden_by_masks(half.side),
            "not_covered": words.not_covered(half.side),
            "ledger": folder.ledger.hash,
            "model": chain.links[-1].get("model"),
            "model_files": model_files_hash(folder.path),
            "links": chain.links,
            "head": chain.head,
            "server_signature": signed_head(folder.run, chain, key),
        },
        key,
    )


def model_files_hash(server: Path) -> str | None:
    """SHA-256 of the certificate beside the model, which names the model's files; None where none is there."""
    file = server / "model" / "certificate.json"
    return digest_of(read_bytes(file)) if file.is_file() else None


def _statements(terms: Terms, folder: ServerFolder) -> dict[str, Any]:
    """What nodes say to have spent in this run. The messages that they signed are in the folder."""
    found = {}
    for name, data in sorted(folder.read_signed("statements").items()):
        value = open_message(data, terms.register).message.content.get("statement")
        if isinstance(value, Mapping):
            found[name] = dict(value)
    return found


def write_server_certificate(folder: Path, certificate: Mapping[str, Any]) -> None:
    """certificate.txt and certificate.json."""
    write_atomically(folder / "certificate.txt", (server_text(certificate) + "\n").encode())
    write_document(folder / "certificate.json", certificate)


def server_text(c: Mapping[str, Any]) -> str:
    """The certificate, for people."""
    lines = ["PRIVACY CERTIFICATE OF A SERVER", *([NOT_PRIVATE] if c["test_mode"] else [])]
    missed = words.steps_words(c["steps_not_released"])
    spent = "kept by each node for its own rows, see below" if c["price"] is None else words.spent_words(c["price"])
    rows = [
        ("federation", c["federation"]),
        ("method", c["method"]),
        ("run", c["run"]),
        ("terms", c["terms"]),
        ("private", "yes" if c["private"] else "NO"),
        ("protected unit", "one row of a node" if c["unit"] == "sample" else "one node with all its rows"),
        ("released", f"{c['steps_released']} steps; {c['rounds_planned']} rounds were planned"),
        ("charged only", missed or ["none"]),
        ("spent", spent),
        ("states", [f"{name}: {words.spent_words(one['run'])}" for name, one in c["nodes"].items()] or ["nobody"]),
        ("no statement", c["without_statement"] or ["none"]),
        ("must be trusted", c["trusted"]),
        ("hidden by masks", c["hidden_by_masks"]),
        ("not covered", c["not_covered"]),
        ("ledger", c["ledger"]),
        ("history", f"{len(c['links'])} links, head {c['head']}"),
        ("model", c["model"]),
        ("model's files", c.get("model_files") or "none"),
        ("signed by", c["key"]),
    ]
    return "\n".join([*lines, words.rows_of(rows)])
