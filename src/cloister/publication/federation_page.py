"""Pages about a federation: the server's certificate and a node's. Both have an epsilon and a delta, and no profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cloister.deploy.certificates import words
from cloister.deploy.certificates.signed import NOT_PRIVATE
from cloister.deploy.wire.identity import PublicKey
from cloister.privacy.attacker import PRIORS, guessed, told_apart
from cloister.privacy.certificate_text import round_up
from cloister.publication.page import Banner, Page, Spent
from cloister.publication.run_page import formula, guesses_of, meaning_of, names_of, signature_words, spent_of

_UNITS = {
    "sample": (
        "row",
        "one row of one node: used, or not there at all (or another one, where rows are replaced)",
        "One row of a node's table. What many rows have in common is not hidden.",
    ),
    "client": (
        "node",
        "all rows of one node: used, or not there at all (or others, where nodes are replaced)",
        "One node as a whole, with all its rows. Two tables of a node that differ in one row are two such steps apart: "
        "of one row alone twice the epsilon is proven, at (1 + e^epsilon) times the delta.",
    ),
}


def node_page(c: Mapping[str, Any]) -> Page:
    """What the data of one node have spent."""
    run, everything, limit = c["run"], c["all_runs"], c["limit"]
    most = None if limit is None else limit["epsilon"]
    spending = [
        _account("this run", run, run, None),
        _account(f"any one row, over {words.counted(everything['runs'], 'run')}", everything, None, most),
    ]
    return _page(
        c,
        f"node {c['node']} of {c['federation']}",
        run,
        spending,
        "The limit is what the node allows its data to lose, whatever a server asks for.",
        [
            ("run", [run["name"]]),
            ("ledger", [f"{c['ledger']['name']}, head {c['ledger']['head']}"]),
            ("server's history", [f"{c['history']['length']} links, head {c['history']['head']}"]),
        ],
        [],
    )


def server_page(c: Mapping[str, Any]) -> Page:
    """What a server released."""
    nodes = [_account(name, one["run"], one["run"], None) for name, one in c["nodes"].items()]
    prices = [one["run"] for one in c["nodes"].values()]
    bounded = [one for one in prices if one["epsilon"] is not None]
    worst = max(bounded, key=lambda one: one["epsilon"]) if bounded and len(bounded) == len(prices) else None
    return _page(
        c,
        f"{c['method']} in the federation {c['federation']}",
        c["price"] or worst or {"epsilon": None, "delta": 1e-5},
        nodes,
        "What nodes state to have spent in this run; each has a ledger and a certificate of its own.",
        [
            ("released", [f"{c['steps_released']} steps; {c['rounds_planned']} rounds were planned"]),
            ("charged only", words.steps_words(c["steps_not_released"]) or ["none"]),
            ("no statement", list(c["without_statement"]) or ["none"]),
            ("run", [c["run"]]),
            ("ledger", [c["ledger"]]),
            ("history", [f"{len(c['links'])} links, head {c['head']}"]),
            ("model", [str(c["model"])]),
            ("model's files", [str(c.get("model_files"))]),
        ],
        list(c["nodes"]),
    )


def _page(
    c: Mapping[str, Any],
    subject: str,
    price: Mapping[str, Any],
    spending: Sequence[Mapping[str, Any]],
    note: str,
    details: list[tuple[str, list[str]]],
    names: Sequence[str],
) -> Page:
    epsilon, delta = price["epsilon"], price["delta"]
    bounded = bool(c["private"]) and epsilon is not None
    unit, compared, meant = _UNITS[c["unit"]]
    points = [(epsilon, delta)] if bounded else []
    people = {
        "guesses": [{"before": one, "after": guessed(points, one)} for one in PRIORS] if bounded else [],
        "told_apart": told_apart(points) if bounded else None,
    }
    key = PublicKey.from_text(c["key"])
    widest = max([_size(one) for one in spending], default=0.0) or 1.0
    return Page(
        title="Privacy certificate",
        subject=subject,
        banners=_banners(c, bounded),
        epsilon=round_up(epsilon) if bounded else "",
        at_delta=f"at delta {delta:g}",
        whom=f"for each {unit}",
        meaning=meaning_of(epsilon, delta, unit, compared) if bounded else [_NOTHING],
        guesses=guesses_of(people, unit),
        formula=formula(False) if bounded else "",
        unit=[meant] if bounded else ["Nobody."],
        names=names_of(names),
        spending_title="What was spent",
        spending=[_spent(one, widest) for one in spending],
        spending_note=note,
        trusted=list(c["trusted"]),
        not_covered=[*c["not_covered"], *(f"hidden by masks: {one}" for one in c["hidden_by_masks"])],
        details=[("federation", [c["federation"]]), ("terms", [c["terms"]]), *details],
        files=[],
        signature=signature_words((key.text, key.fingerprint)),
        check=["cloister verify certificate.json --terms terms.toml"],
    )


_NOTHING = "No bound on what may be learned about anybody is promised."


def _banners(c: Mapping[str, Any], bounded: bool) -> list[Banner]:
    if c["test_mode"]:
        return [Banner("TEST MODE: NOT PRIVATE", NOT_PRIVATE.removeprefix("NOT PRIVATE: "))]
    return [] if bounded else [Banner("NO PRIVACY GUARANTEE", _NOTHING)]


def _account(
    name: str, price: Mapping[str, Any], run: Mapping[str, Any] | None, budget: float | None
) -> dict[str, Any]:
    counts = {"releases": None, "rounds": None} if run is None else {name: run[name] for name in ("releases", "rounds")}
    return {"name": name, "samples": None, "epsilon": price["epsilon"], "budget": budget, **counts}


def _spent(row: Mapping[str, Any], widest: float) -> Spent:
    if row["releases"] is not None:
        return spent_of(row, widest)
    found = spent_of({**row, "releases": 0, "rounds": 0}, widest)
    return replace(found, more="", budget=found.budget.replace("no budget", "no limit"))


def _size(row: Mapping[str, Any]) -> float:
    return max((value for value in (row["epsilon"], row["budget"]) if value is not None), default=0.0)
