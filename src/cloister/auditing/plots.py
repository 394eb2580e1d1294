"""Both bounds as a picture: what is certified, and what was found to be spent at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from cloister.auditing.found import Audit
from cloister.runs.report.style import expect_plot
from cloister.theory.plots import panel_grid

_CERTIFIED, _FOUND, _EXPOSED, _ESTIMATE = "#0072B2", "#009E73", "#B00000", "0.45"
_MARKS = {"worst_case": "o", "one_run": "s", "one_shot": "D"}
_WORDS = {
    "worst_case": "at least: worst case, many runs",
    "one_run": "at least: canaries in one run",
    "one_shot": "estimate: canaries in one run",
}


def bounds_plot(audits: Sequence[Audit], path: Path, dpi: int = 130) -> None:
    """A row for every audit: the certified epsilon, and the lower bounds of each kind."""
    from matplotlib.ticker import MaxNLocator

    expect_plot(path)
    picture, (axes,) = panel_grid(1, 1, (7.2, 1.6 + 0.34 * len(audits)), dpi)
    shown = [audit.certified for audit in audits if math.isfinite(audit.certified)]
    shown += [bound.epsilon for audit in audits for bound in audit.bounds if math.isfinite(bound.epsilon)]
    right = 1.12 * max(shown, default=1.0)
    told: set[str] = set()

    def once(words: str) -> str:
        new = "" if words in told else words
        told.add(words)
        return new

    for row, audit in enumerate(audits):
        color = _EXPOSED if audit.exposed else _FOUND
        if math.isfinite(audit.certified):
            axes.barh(row, audit.certified, 0.5, color=_CERTIFIED, alpha=0.18, linewidth=0)
            axes.plot(
                [audit.certified] * 2, [row - 0.32, row + 0.32], color=_CERTIFIED, label=once("at most: certified")
            )
        else:
            axes.annotate("nothing is certified", (right, row), ha="right", va="center", fontsize=7, color=_CERTIFIED)
        for bound in audit.bounds:
            known = bound.confidence is not None
            axes.plot(
                min(bound.epsilon, right),
                row,
                _MARKS[bound.kind],
                ms=6,
                color=color if known else _ESTIMATE,
                mfc=color if known else "none",
                label=once(_WORDS[bound.kind]),
            )
        if audit.exposed and audit.confirmation is not None:
            words = f" EXPOSED: at least {audit.confirmation.epsilon:.2f}"
            axes.annotate(
                words,
                (audit.lower, row),
                va="center",
                fontsize=7,
                color=_EXPOSED,
                xytext=(6, 0),
                textcoords="offset points",
            )
    axes.set_yticks(range(len(audits)), [audit.label or audit.method for audit in audits], fontsize=8)
    axes.set_ylim(len(audits) - 0.4, -0.6)
    axes.set_xlim(0, right)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8))
    deltas = sorted({audit.delta for audit in audits})
    sure = sorted({bound.confidence for audit in audits for bound in audit.bounds if bound.confidence is not None})
    axes.set_xlabel(f"epsilon at delta {', '.join(f'{delta:g}' for delta in deltas)}")
    # over the whole picture: long names leave little room above the axes
    picture.suptitle(f"Spent at least (confidence {', '.join(f'{one:g}' for one in sure)}), and at most", fontsize=10)
    axes.grid(axis="y", visible=False)
    picture.legend(frameon=False, fontsize=8, ncols=2, loc="outside lower center")
    picture.savefig(path)
