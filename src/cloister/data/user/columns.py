"""What one column of a table is, as somebody declares it. Nothing is taken from the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from typing import Any

from cloister.data.user.cells import Words, days_of, number_of, text_of, truth_of
from cloister.errors import CloisterError, expect, expect_positive, nearest, shown

_EVERY = ("kind", "fill", "missing", "indicator")
KEYS = {
    "number": (*_EVERY, "range", "center", "scale"),
    "category": (*_EVERY, "categories", "unknown"),
    "boolean": _EVERY,
    "date": (*_EVERY, "range", "format"),
    "ordinal": (*_EVERY, "categories"),
    "ignore": ("kind",),
}
"""What can be declared of each kind of column."""

CLIENT_FILLS = ("client_mean", "client_median")
"""Statistics of a client's own training rows: what they fill tells of all of these."""


@dataclass(frozen=True)
class Column:
    """A column; `declared` is what was said of it, from which everything else follows."""

    name: str
    declared: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        said = {"kind": self.declared} if isinstance(self.declared, str) else self.declared
        self._expect(isinstance(said, Mapping), "a table of what it is", said, 'write kind = "number", for one')
        object.__setattr__(self, "declared", {key: _plain(value) for key, value in said.items()})
        if "kind" not in self.declared:
            raise CloisterError(
                f"Expected a kind for column {self.name!r}, found none: say one of {', '.join(KEYS)}, for instance "
                'kind = "number".'
            )
        if not isinstance(self.kind, str) or self.kind not in KEYS:
            close = nearest(str(self.kind), KEYS)
            raise CloisterError(
                f"Expected kind of column {self.name!r} to be one of {', '.join(KEYS)}, found {shown(self.kind)}: "
                f"{close}."
            )
        for key in self.declared:
            if key not in KEYS[self.kind]:
                close = nearest(str(key), KEYS[self.kind])
                raise CloisterError(
                    f"Expected keys of a {self.kind} for column {self.name!r}, found {shown(key)}: {close}."
                )
        self._check()

    def _expect(self, condition: bool, expectation: str, found: object, remedy: str) -> None:
        expect(condition, f"column {self.name!r} to have {expectation}", found, remedy)

    def _check(self) -> None:
        """Every mistake in a declaration is found here, before a file is opened."""
        self._expect(
            isinstance(self.get("indicator", False), bool), "indicator = true or false", self.get("indicator"), "choose"
        )
        listed = isinstance(self.get("missing", []), list) and all(_is_word(one) for one in self.get("missing", []))
        self._expect(listed, "a list of cells as missing", self.get("missing"), "such as [0, -9]")
        if self.kind in ("category", "ordinal"):
            self._check_categories()
        if self.kind == "number":
            self._check_scale()
        if self.kind == "date":
            form = self.get("format")
            self._expect(form is None or isinstance(form, str), "a format of dates", form, "such as %d.%m.%Y")
            self._expect("range" in self.declared, "a range", "none", "declare two dates, by which it is scaled")
        if "range" in self.declared:
            self._check_range()
        if "fill" in self.declared:
            self._check_fill()

    def _check_categories(self) -> None:
        found = self.get("categories")
        remedy = 'list the cells, as ["1", "2"], or group them, as {healthy = ["0"], sick = ["1", "2"]}'
        self._expect(isinstance(found, (list, Mapping)), "categories", "none" if found is None else found, remedy)
        groups = found.values() if isinstance(found, Mapping) else [[word] for word in found]
        for group in groups:
            fine = isinstance(group, list) and len(group) > 0 and all(_is_word(word) for word in group)
            self._expect(fine, "categories that are words or numbers", group, remedy)
        self._expect(len(self.categories) >= 2, "two categories at least", list(self.categories), remedy)
        words = [word for group in self.groups for word in group]
        twice = [word for word in words if words.count(word) > 1]
        self._expect(not twice, "every category once", twice[:1], "remove one of them")
        self._expect(len(set(self.categories)) == len(self.categories), "different categories", self.categories, remedy)
        unknown = self.get("unknown", "error")
        self._expect(unknown in ("error", "zero"), "unknown = error or zero", unknown, "choose one")

    def _check_scale(self) -> None:
        for key in ("center", "scale"):
            if key in self.declared:
                self._expect(_is_number(self.get(key)), f"a number as {key}", self.get(key), "give a constant")
        both = "range" in self.declared and ("center" in self.declared or "scale" in self.declared)
        self._expect(not both, "either a range, or center and scale", dict(self.declared), "declare one of them")
        if "scale" in self.declared:
            expect_positive(f"scale of column {self.name!r}", self.get("scale"), "values are divided by it")

    def _check_range(self) -> None:
        ends = self.get("range")
        remedy = "declare what values can be at least and at most, from what is publicly known"
        self._expect(isinstance(ends, list) and len(ends) == 2, "a range of two ends", ends, remedy)
        values = [self.value_of(end) for end in ends]
        dates = "dates" if self.kind == "date" else "numbers"
        self._expect(None not in values, f"{dates} as ends of its range", ends, remedy)
        low, high = (float(value or 0.0) for value in values)
        self._expect(low < high, "a range that rises", ends, remedy)
        self._expect(1e-18 < high - low < 1e18, "a range of usable size", ends, remedy)

    def _check_fill(self) -> None:
        fill = self.get("fill")
        if fill in CLIENT_FILLS:
            self._expect(self.kind == "number", "a constant as fill", fill, "only numbers have means and medians")
            known = "range" in self.declared or "center" in self.declared
            remedy = "a client that has no value at all is given the middle"
            self._expect(known, f"a range or a center beside fill = {fill}", dict(self.declared), remedy)
            return
        if self.kind == "number" and isinstance(fill, str) and number_of(fill) is None:
            close = nearest(fill, CLIENT_FILLS, "give a constant in the column's own units")
            raise CloisterError(
                f"Expected fill of column {self.name!r} to be a number, client_mean or client_median, found "
                f"{shown(fill)}: {close}."
            )
        wanted = {"number": "a number", "date": "a date", "boolean": "true or false"}.get(
            self.kind, f"one of {', '.join(self.categories)}"
        )
        self._expect(self.value_of(fill) is not None, f"{wanted} as fill", fill, "it stands for missing values")

    def get(self, key: str, otherwise: Any = None) -> Any:
        """What was declared, if anything."""
        return self.declared.get(key, otherwise)

    @property
    def kind(self) -> str:
        """number, category, boolean, date, ordinal or ignore."""
        kind: str = self.declared["kind"]
        return kind

    @cached_property
    def categories(self) -> tuple[str, ...]:
        """The names of categories, or of their groups, in order."""
        return tuple(text_of(name) for name in self.get("categories", ()))

    @cached_property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The cells that make up each category."""
        found = self.get("categories", ())
        groups = found.values() if isinstance(found, Mapping) else [[word] for word in found]
        return tuple(tuple(text_of(word) for word in group) for group in groups)

    @cached_property
    def words(self) -> Words:
        """In which category a cell is."""
        return Words(self.groups)

    @cached_property
    def is_read_as_number(self) -> bool:
        """Whether whatever it may hold is a number, so that its cells can be read as such at once."""
        missing = all(number_of(word) is not None for word in self.get("missing", ()))
        return missing and (self.kind == "number" or (bool(self.categories) and self.words.all_numbers))

    @property
    def is_scaled(self) -> bool:
        """Whether something was declared by which numbers are scaled."""
        return not {"range", "center", "scale"}.isdisjoint(self.declared)

    @cached_property
    def own_missing(self) -> tuple[str, ...]:
        """Cells of this column that count as missing beside those of all columns."""
        return tuple(text_of(word) for word in self.get("missing", ()))

    def value_of(self, cell: Any) -> float | None:
        """The number that a cell stands for (a number, a day, the place of a category); None if it stands for none."""
        if self.kind == "number":
            return number_of(cell)
        if self.kind == "date":
            return days_of(cell, self.get("format")) if not isinstance(cell, str) else self._day(cell)
        return truth_of(cell) if self.kind == "boolean" else self._place(cell)

    def _day(self, cell: str) -> float | None:
        """A day in the declared form; what is declared itself (ends, fills) may also be ISO."""
        form, found = self.get("format"), days_of(cell, self.get("format"))
        declared = (*self.get("range", ()), self.get("fill"))
        return days_of(cell) if found is None and form is not None and cell in declared else found

    def _place(self, cell: Any) -> int | None:
        found = self.words.find(cell)
        if found is None and text_of(cell) in self.categories:  # a group, by its name: as a fill
            return self.categories.index(text_of(cell))
        return found

    @cached_property
    def middle_and_half(self) -> tuple[float, float]:
        """What values are measured from and divided by: (x - middle) / half."""
        if "range" in self.declared:
            low, high = (float(self.value_of(end) or 0.0) for end in self.get("range"))
            return (low + high) / 2, (high - low) / 2
        return float(self.get("center", 0.0)), float(self.get("scale", 1.0))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """What the numbers that a column becomes are called."""
        of_kind = {"ignore": (), "category": tuple(f"{self.name}={name}" for name in self.categories)}
        names = of_kind.get(self.kind, (self.name,))
        return (*names, f"{self.name} missing") if self.get("indicator") else names


def _is_number(value: object) -> bool:
    return not isinstance(value, (bool, str)) and number_of(value) is not None


def _is_word(value: object) -> bool:
    return isinstance(value, (str, int, float))


def _plain(value: Any) -> Any:
    """A declared value as JSON can say it."""
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value
