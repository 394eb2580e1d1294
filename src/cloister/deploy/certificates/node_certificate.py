"""A node's certificate: what its data have spent, in this run and in all, signed by it; and its receipt: what it was
told of the server's history, signed by both, to be compared with the other nodes' (`comparison.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.deploy.certificates import words
from cloister.deploy.certificates.signed import NODE, NOT_PRIVATE, RECEIPT, signed, write_document
from cloister.deploy.halves.node_half import NodeHalf
from cloister.deploy.terms.terms import Terms
from cloister.deploy.wire import fields
from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.identity import PrivateKey
from cloister.deploy.wire.refused import accept_if
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.files import write_atomically

if TYPE_CHECKING:
    from cloister.deploy.node.folder import RunFiles
    from cloister.deploy.node.ledger import NodeLedger


def node_certificate(
    terms: Terms, name: str, run: str, half: NodeHalf, ledger: NodeLedger, files: RunFiles, key: PrivateKey
) -> dict[str, Any]:
    """What this node has spent, from its ledger alone."""
    unit = half.side.fed.unit
    delta = words.delta_of(terms)
    own, everything = ledger.accounts(run)[unit], ledger.accounts()
    limit = ledger.limit
    whole, tests = None, 0 if terms.test_mode else len(ledger.test_runs)
    if not tests and (limit is not None or unit is ProtectedUnit.CLIENT):
        whole = ledger.whole_client(limit.delta if limit is not None else delta)
    adaptive = half.side.fed.method.noise_schedule is not None
    this_run = words.run_price(own, delta, half.budget, _ended_early(half, files), adaptive)
    raised = this_run != words.price(own, delta)
    return signed(
        {
            "format": NODE,
            "node": name,
            "federation": terms.federation.name,
            "terms": terms.digest,
            "test_mode": terms.test_mode,
            "private": not terms.test_mode and words.protects(own),
            "unit": unit.value,
            "run": {
                "name": run,
                "releases": own.releases,
                "rounds": len(own.rounds),
                **this_run,
            },
            "all_runs": {
                "runs": len(ledger.runs),
                "unit": "any one row",
                **words.price(everything[ProtectedUnit.SAMPLE], limit.delta if limit is not None else delta),
                **({"epsilon": None, "epsilon_rdp": None} if tests or this_run["epsilon"] is None else {}),
                "whole_client": None if whole is None else words.finite(whole),
            },
            "limit": None if limit is None else {"epsilon": limit.epsilon, "delta": limit.delta},
            "trusted": words.trusted(half.side),
            "hidden_by_masks": words.hidden_by_masks(half.side),
            "not_covered": [
                *([words.ONE_ROW] if ledger.hides_whole_nodes else []),
                *([words.PROMISED] if raised else []),
                *words.not_covered(half.side, len(ledger.runs), tests),
            ],
            "ledger": {"name": ledger.name, "head": ledger.head},
            "history": files.head,
        },
        key,
    )


def _ended_early(half: NodeHalf, files: RunFiles) -> bool:
    """Whether a private validation ended the run before its last step."""
    opened = sum(link["link"] == "opened" for link in files.history.chain.links)
    return half.side.terms.options.patience is not None and opened < len(half.steps)


def statement(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """What the server is told of it: this run alone. What other runs have spent is the node's own business."""
    told = ("node", "terms", "test_mode", "private", "unit", "run", "history")
    return {name: certificate[name] for name in told}


def spent_in(content: Mapping[str, JSON]) -> float | None:
    """The epsilon that a statement tells, None for no bound; refused where it is no statement."""
    told = fields.mapping(content, "statement")
    run = fields.mapping(told, "run")
    fields.number(run, "delta")
    accept_if(isinstance(told.get("private"), bool), "whether it was private", told.get("private"), "say so")
    return None if run.get("epsilon") is None else fields.number(run, "epsilon")


def receipt(terms: Terms, name: str, run: str, files: RunFiles, key: PrivateKey) -> dict[str, Any]:
    """What the server told this node, with its signature: for comparing."""
    head = files.head
    return signed(
        {
            "format": RECEIPT,
            "node": name,
            "run": run,
            "terms": terms.digest,
            "server": terms.register.server.text,
            "links": files.history.chain.links[: head["length"]],
            "head": head["head"],
            "server_signature": head["signature"],
        },
        key,
    )


def write_node_certificate(folder: Path, certificate: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """For the operator: certificate.json, certificate.txt and receipt.json."""
    write_document(folder / "receipt.json", told)
    write_atomically(folder / "certificate.txt", (node_text(certificate) + "\n").encode())
    write_document(folder / "certificate.json", certificate)


def node_text(c: Mapping[str, Any]) -> str:
    """The certificate, for people."""
    run, everything, limit = c["run"], c["all_runs"], c["limit"]
    whole = everything["whole_client"]
    together = "not bounded" if whole is None else words.spent_words({**everything, "epsilon": whole})
    lines = ["PRIVACY CERTIFICATE OF A NODE", *([NOT_PRIVATE] if c["test_mode"] else [])]
    rows = [
        ("node", c["node"]),
        ("federation", c["federation"]),
        ("terms", c["terms"]),
        ("private", "yes" if c["private"] else "NO"),
        ("protected unit", "one row of this node" if c["unit"] == "sample" else "this node with all its rows"),
        ("this run", f"{words.spent_words(run)}, {run['releases']} releases in {run['rounds']} rounds ({run['name']})"),
        ("all runs", f"{words.spent_words(everything)} for any one row, {words.counted(everything['runs'], 'run')}"),
        ("all rows together", together),
        ("limit", "none" if limit is None else f"epsilon {limit['epsilon']:g} at delta {limit['delta']:g}"),
        ("must be trusted", c["trusted"]),
        ("hidden by masks", c["hidden_by_masks"]),
        ("not covered", c["not_covered"]),
        ("ledger", f"{c['ledger']['name']}, head {c['ledger']['head']}"),
        ("server's history", f"{c['history']['length']} links, head {c['history']['head']}"),
        ("signed by", c["key"]),
    ]
    return "\n".join([*lines, words.rows_of(rows)])
