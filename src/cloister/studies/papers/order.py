"""Whether the paper's order holds here: pair by pair, between cells that differ in nothing but what is compared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from cloister.studies.papers.outcomes import Row
from cloister.studies.statistics import Difference, holm, paired

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

    p values are adjusted by Holm for all pairs of the table: where nothing differs, the chance of any false verdict in
    the whole table is 5 %. With one seed only means can be compared, which is said.
    """
    pairs = _pairs(rows, axes)
    return [_verdict(row, [pair for pair in pairs if row is pair.one or row is pair.other], axes) for row in rows]


@dataclass(frozen=True, eq=False)
class _Pair:
    """Two rows that the paper orders, and that were run with a common seed."""

    one: Row
    other: Row
    found: Difference

    def beside(self, row: Row) -> Row:
        """The other one."""
        return self.other if row is self.one else self.one

    @property
    def right(self) -> bool:
        """Whether ours differ as the paper's do."""
        assert self.found.mean is not None
        return self.found.mean * (_mean(self.one) - _mean(self.other)) > 0


def _pairs(rows: Sequence[Row], axes: Sequence[str]) -> list[_Pair]:
    found = []
    for one, other in combinations([row for row in rows if compared(row)], 2):
        if group(one, axes) == group(other, axes) and _mean(one) != _mean(other):
            difference = paired({"one": one.by_seed(), "other": other.by_seed()}, "one", "other")
            if difference.mean is not None:
                found.append(_Pair(one, other, difference))
    adjusted = holm([pair.found.p for pair in found])
    return [
        _Pair(pair.one, pair.other, replace(pair.found, adjusted_p=p)) for pair, p in zip(found, adjusted, strict=True)
    ]


def _verdict(row: Row, pairs: Sequence[_Pair], axes: Sequence[str]) -> str:
    wrong, unsure, sure = [], [], 0
    for pair in pairs:
        if pair.found.verdict == "not distinguishable":
            unsure.append(_name(pair.beside(row), axes))
        elif pair.right:
            sure += 1
        else:
            wrong.append(_name(pair.beside(row), axes))
    beside = [len(one.by_seed()) for one in [row, *(pair.beside(row) for pair in pairs)]]
    few = ONE_SEED if min(beside) < 2 else ""
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
