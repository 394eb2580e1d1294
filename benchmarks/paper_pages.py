"""What docs/theory.md and docs/papers.md say: bounds, claims beside tables, and where every part of the papers is."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INVENTORY = ROOT / "docs" / "papers.toml"

PAPERS = {
    "000": "BLUR and LUS (Cheng et al., CVPR 2022)",
    "001": "DP-FedSAM (Shi et al., CVPR 2023, journal version)",
    "002": "Fed-SPA (Hu, Gong & Guo, IJCAI 2021)",
    "003": "PFL (arXiv 2501.14453)",
    "004": "Adap DP-FL (Fu, Chen & Han, TrustCom 2022)",
}


def _table(heads: str, rows: Iterable[list[str]]) -> list[str]:
    columns = heads.count("|") + 1
    return [f"| {heads} |", "|---" * columns + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _cell(text: str) -> str:
    """Text that can stand in a table."""
    return " ".join(text.split()).replace("|", "\\|")


def theory_bounds() -> str:
    """Every bound, with what it says of itself."""
    from cloister.theory.bounds import BOUNDS, kind_of, summary_of

    lines: list[str] = []
    for paper, name in PAPERS.items():
        rows = [
            [
                part,
                f"`theory.{function.__module__.rsplit('.', 1)[-1]}.{function.__name__}`",
                kind_of(function),
                _cell(summary_of(function)),
            ]
            for own, part, function in BOUNDS
            if own == paper
        ]
        lines += [f"**{name}**", "", *_table("part | function | what it is | bound", rows), ""]
    return "\n".join(lines).rstrip()


def theory_claims() -> str:
    """What the papers say in words, beside their tables."""
    from cloister.theory import CLAIMS

    agreeing = sum(claim.agrees() for claim in CLAIMS)
    rows = [
        [
            claim.paper,
            _cell(claim.place),
            _cell(claim.says),
            _cell(f"{claim.table}: {_found(claim)}"),
            "yes" if claim.agrees() else "no",
        ]
        for claim in CLAIMS
    ]
    lines = _table("paper | place | the words | beside | agree", rows)
    return "\n".join([f"{agreeing} of {len(CLAIMS)} agree.", "", *lines])


def _found(claim: Any) -> str:
    numbers = claim.found()
    if not claim.figures:
        what = len(claim.rows or claim.above)
        text = f"{numbers[0]:.0f} of {what} against it"
    else:
        text = ", ".join(f"{number:.3g}" if claim.how == "computed" else f"{number:.4g}" for number in numbers)
    return f"{text}. {claim.note}".removesuffix(" ")


def rows() -> list[dict[str, Any]]:
    """The inventory's rows, as they are written."""
    found: list[dict[str, Any]] = tomllib.loads(INVENTORY.read_text())["item"]
    return found


def inventory() -> str:
    """A table for every paper: part, item, where it is, how it is used, its tests."""
    lines: list[str] = []
    for paper, name in PAPERS.items():
        cells = [
            [_cell(row["part"]), _cell(row["item"]), _names(row["where"]), _cell(row["use"]), _names(row["test"])]
            for row in rows()
            if row["paper"] == paper
        ]
        lines += [f"## {paper}: {name}", "", *_table("part | item | where | use | test", cells), ""]
    return "\n".join(lines).rstrip()


def _names(names: list[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)
