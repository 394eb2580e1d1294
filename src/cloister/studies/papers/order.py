"""Whether the paper's order holds here: pair by pair, between cells that differ in nothing but what is compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from cloister.studies.papers.outcomes import Row
from cloister.studies.statistics import paired

ONE_SEED = " (one seed)"
"""At the end of a verdict that rests on numbers whose spread is unknown."""


def compared(row: Row) -> bool:
    """Whether it takes part: a proven method of the paper that was run."""
    number = row.reported is not None and row.reported.mean is not None
    return number and not row.cell.replicates and bool(row.by_seed())


def group(row: Row, axes: Iterable[str]) -> tuple[object, ...]:
    """What it has in common with those that it is compared with."""
    at = {"method": row.cell.method, **row.cell.axes}
    return (row.quantity, *sorted((axis, label) for axis, label in at.items() if axis not in axes))


def verdicts(rows: Sequence[Row], axes: Sequence[str]) -> list[str]:
    """For every row: "yes", "no" with those before or behind which it should not be, "open" where seeds cannot tell.

    With one seed only means can be compared, which is said.
    """
    return [_verdict(row, rows, axes) if compared(row) else "" for row in rows]


def _verdict(row: Row, rows: Sequence[Row], axes: Sequence[str]) -> str:
    others = [one for one in rows if one is not row and compared(one) and group(one, axes) == group(row, axes)]
    wrong, unsure, sure = [], [], 0
    for other in others:
        paper = _mean(row) - _mean(other)
        if paper == 0:
            continue
        pair = {"row": row.by_seed(), "other": other.by_seed()}
        found = paired(pair, "row", "other")
        if found.mean is None:
            continue
        single = found.verdict == "cannot tell"
        if not single and found.verdict != "differ":
            unsure.append(_name(other, axes))
        elif found.mean * paper <= 0:
            wrong.append(_name(other, axes))
        else:
            sure += 1
    few = ONE_SEED if min((len(one.by_seed()) for one in [row, *others]), default=0) < 2 else ""
    if wrong:
        return f"no: {', '.join(wrong)}{few}"
    if unsure:
        return f"open: {', '.join(unsure)}"
    return f"yes{few}" if sure else ""


def in_words(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """How many pairs of cells are in the paper's order, by accuracy."""
    able = [row for row in rows if compared(row) and row.quantity == "accuracy"]
    pairs = [(one, other) for one, other in combinations(able, 2) if group(one, axes) == group(other, axes)]
    ordered = [(one, other) for one, other in pairs if _mean(one) != _mean(other)]
    if not ordered:
        return "No two cells can be compared with the paper's order."
    right = sum((_mean(one) - _mean(other)) * (_ours(one) - _ours(other)) > 0 for one, other in ordered)
    along = " and ".join(axes)
    return f"{right} of {len(ordered)} pairs that the paper orders along {along} have the same order here (by means)."


def _mean(row: Row) -> float:
    assert row.reported is not None
    assert row.reported.mean is not None
    return row.reported.mean


def _ours(row: Row) -> float:
    found = row.ours()
    assert found is not None
    return found.mean


def _name(row: Row, axes: Iterable[str]) -> str:
    """Of a cell beside another one of its group."""
    at = {"method": row.cell.method, **row.cell.axes}
    return " ".join(at[axis] for axis in axes if axis in at)
