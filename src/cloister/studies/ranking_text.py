"""A ranking in words: which methods may be the best, and which are worse for sure enough."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.runs.metric_text import figure
from cloister.runs.scores import SELECTED_ON_TEST
from cloister.studies.rows import Group, Row
from cloister.studies.statistics import FEW, Ranked

_HEADS = {
    "not distinguishable": "not distinguishable from it",
    "cannot tell": "cannot tell from it (fewer than two common seeds, the same difference in all, or common seeds that "
    "contradict the order)",
    "worse": "worse",
}


def ranking_text(groups: Sequence[Group], confidence: float = 0.95, swept: Sequence[str] = ()) -> str:
    """A few lines for every epsilon; nothing where there is nothing to compare.

    `swept`: settings of which several values were run, so that the best of them is selected on test data."""
    several = [group for group in groups if len(group.order) > 1]
    if not several:
        alone = len(groups) > 1
        words = "\nNo two rows promise the same on the same data by the same metric, so that none are ranked."
        return words if alone else ""
    if all(one.about.n < 2 for group in several for one in group.order):
        return (
            "\nOne seed: whether a difference is more than chance cannot be told. With seed=[0,1,2,3,4] methods are "
            "ranked, with intervals."
        )
    lines = [
        f"\nRanking (paired over common seeds, {confidence:.0%} for all pairs together, by Holm; behind: by how much, "
        "with the interval of that pair by itself):"
    ]
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
    """A row and how far it is behind the best, with the interval of the pair: how much it may be."""
    words, gap = [figure(group.monitor, one.about.mean)], one.against_best
    if gap is not None and one.behind is not None and gap.p is not None:
        words.append(f"behind {figure(group.monitor, one.behind)}")
        if gap.low is not None and gap.high is not None:
            ends = (gap.low, gap.high) if one.larger_is_better else (-gap.high, -gap.low)
            words.append(" to ".join(figure(group.monitor, end) for end in ends))
    if one.verdict == "worse" and gap is not None:
        words.append(f"p {_p(gap.adjusted_p)}")
    return f"{one.name} ({', '.join(words)})"


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def cautions(rows: Sequence[Row]) -> str:
    """What the means leave out, row by row: runs without a score, and updates that were no numbers."""
    lines = []
    for row in rows:
        lost = [run.seed for run in row.runs if run.score is None]
        share = max(run.nonfinite for run in row.runs)
        if lost and len(lost) < len(row.runs):
            seeds = f"seed{'s' if len(lost) > 1 else ''} {' '.join(map(str, lost))}"
            lines.append(f"  {row.series}: no {row.monitor} with {seeds}, which the mean leaves out")
        if share:
            lines.append(
                f"  {row.series}: up to {_percent(share)} of a run's updates were not finite, and counted as zero; a "
                "smaller learning rate may help"
            )
    return "\n".join(["\nTo be taken with care:", *lines]) if lines else ""


def _percent(share: float) -> str:
    return f"{max(share, 0.001):.1%}" if share < 0.01 else f"{share:.0%}"
