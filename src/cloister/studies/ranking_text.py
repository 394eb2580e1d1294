"""A ranking in words: which methods may be the best, and which are worse for sure enough."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.runs.metric_text import figure
from cloister.runs.scores import SELECTED_ON_TEST
from cloister.studies.rows import Group
from cloister.studies.statistics import FEW, Ranked

_HEADS = {
    "not distinguishable": "not distinguishable from it",
    "cannot tell": "cannot tell from it (fewer than two common seeds, or the same difference in all)",
    "worse": "worse",
}


def ranking_text(groups: Sequence[Group], confidence: float = 0.95, swept: Sequence[str] = ()) -> str:
    """A few lines for every epsilon; nothing where there is nothing to compare.

    `swept`: settings of which several values were run, so that the best of them is selected on test data."""
    several = [group for group in groups if len(group.order) > 1]
    if not several:
        return ""
    if all(one.about.n < 2 for group in several for one in group.order):
        return (
            "\nOne seed: whether a difference is more than chance cannot be told. With seed=[0,1,2,3,4] methods are "
            "ranked, with intervals."
        )
    lines = [f"\nRanking (paired over common seeds, {confidence:.0%} for all pairs together, by Holm):"]
    for group in groups:
        lines += _group(group)
    least = min(one.about.n for group in several for one in group.order)
    if least < FEW:
        lines.append(f"  with {least} seed{'s' if least > 1 else ''}, only large differences can be told from chance")
    if swept:
        lines.append(
            f"  the best {' and '.join(swept)} of these is {SELECTED_ON_TEST}, and its score promises more than a new "
            "run would keep: settings for a result are searched by `cloister tune`"
        )
    return "\n".join(lines)


def _group(group: Group) -> list[str]:
    best, *others = group.order
    if not others:
        return [f"  {group.title} there is {_mean(group, best)} alone"]
    lines = [f"  {group.title}, the best {group.monitor} is {_mean(group, best)}"]
    for verdict, head in _HEADS.items():
        own = [one for one in others if one.verdict == verdict]
        if own:
            lines.append(f"    {head}: " + "; ".join(_beside(group, one) for one in own))
    return lines


def _mean(group: Group, one: Ranked) -> str:
    return f"{one.name} ({figure(group.monitor, one.about.mean)})"


def _beside(group: Group, one: Ranked) -> str:
    gap = one.against_best
    if gap is None or gap.p is None or one.verdict != "worse":
        return _mean(group, one)
    return f"{one.name} ({figure(group.monitor, one.about.mean)}, p {_p(gap.adjusted_p)})"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
