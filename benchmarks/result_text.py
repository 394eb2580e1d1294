"""Markdown of the pages of results/."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from cloister.studies.statistics import summary


def words(text: str) -> str:
    """A paragraph, in lines."""
    return textwrap.fill(" ".join(text.split()), 118, break_on_hyphens=False)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines."""
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def over_seeds(percent: Sequence[float]) -> str:
    """Mean and standard deviation, where there are several."""
    about = summary(percent)
    return f"{about.mean:.2f}" if about.sd is None else f"{about.mean:.2f} ± {about.sd:.2f}"
