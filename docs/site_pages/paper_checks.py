"""What five papers say, beside what their tables, their settings and our runs say: the rows that do not agree."""

from __future__ import annotations

from cloister.theory import CLAIMS, Claim
from cloister.theory.bounds import BOUNDS, kind_of, summary_of
from site_pages.markdown import table

PAPERS = {
    "blur": "000",
    "lus": "000",
    "blur_lus": "000",
    "dp_fedsam": "001",
    "dp_fedsam_top_k": "001",
    "fed_spa": "002",
    "dp_fed": "002",
    "pfl": "003",
    "adap_dp_fl": "004",
}
"""Which of the five papers of docs/papers.toml a method is from."""


def of_method(name: str) -> list[str]:
    """Statements of its paper that are not so, each with what it was held against."""
    paper = PAPERS.get(name)
    if paper is None:
        return []
    claims = [claim for claim in CLAIMS if claim.paper == paper]
    wrong = [claim for claim in claims if not claim.agrees()]
    parts = [
        f"**What the paper says, and what is so.** Of {len(claims)} statements that can be held against the paper's "
        f"own tables or computed from its settings, {len(wrong)} do not agree:\n",
        table(("place", "the paper says", "beside it"), [(one.place, one.says, beside(one)) for one in wrong]),
    ]
    bounds = [
        (part, function) for own, part, function in BOUNDS if own == paper and kind_of(function) == "not a guarantee"
    ]
    if bounds:
        rows = [(part, summary_of(function), f"[why][{_path(function)}]") for part, function in bounds]
        parts += [
            "**Theorems that are not guarantees as printed.** No run is priced by them:\n",
            table(("part", "what is printed", ""), rows),
        ]
    parts.append(
        "[The papers' bounds](../evidence/theory.md) has all statements and theorems, [What holds up]"
        "(../results/what-holds-up.md) what our own runs say of the paper's comparisons, and [the papers, part by part]"
        "(../evidence/papers.md) where each of them is in the code.\n"
    )
    return parts


def _path(function: object) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"


def beside(claim: Claim) -> str:
    """What the numbers are."""
    numbers = claim.found()
    if not claim.figures:
        text = f"{numbers[0]:.0f} of {len(claim.rows or claim.above)} against it"
    else:
        text = ", ".join(f"{number:.3g}" if claim.how == "computed" else f"{number:.4g}" for number in numbers)
    return f"{claim.table}: {text}. {claim.note}".rstrip()
