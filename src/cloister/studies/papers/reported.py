"""What papers report, cell by cell, typed as it is printed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloister.errors import CloisterError, expect

BLOCK = {"quantity", "at", "down", "across", "head", "rows", "claimed_epsilon", "not_run", "place"}
QUANTITIES = ("accuracy", "train_accuracy", "accuracy_gap", "megabytes")


@dataclass(frozen=True)
class Reported:
    """One number of a paper: where it stands, the mean and, where printed, the standard deviation."""

    at: dict[str, str]
    """The row (`method`) and the values of the axes."""
    printed: str
    mean: float | None
    """In percent; None where the paper has a word, such as "diverge"."""
    sd: float | None = None
    claimed_epsilon: float | str | None = None
    """What the paper says, or why it says nothing; None without privacy."""
    quantity: str = "accuracy"
    not_run: str | None = None
    """Why there is no run beside it, where there is none."""


def label_of(value: Any) -> str:
    """A value as axes name it.

    >>> label_of(0.40), label_of(2), label_of("CNN")
    ('0.4', '2', 'CNN')
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if number else str(value)


def reported_in(name: str, blocks: Sequence[Mapping[str, Any]]) -> list[Reported]:
    """Every number of the blocks [[reported]] of a file."""
    return [one for block in blocks for one in _numbers(name, block)]


def _numbers(name: str, block: Mapping[str, Any]) -> list[Reported]:
    expect(set(block) <= BLOCK, f"known keys in [[reported]] of {name}", sorted(set(block) - BLOCK), "correct them")
    quantity = block.get("quantity", "accuracy")
    expect(quantity in QUANTITIES, f"a quantity among {', '.join(QUANTITIES)}", quantity, "choose one")
    head, found = block.get("head"), []
    for line in block["rows"]:
        places = [{}] if head is None else [{block["across"]: label_of(one)} for one in head]
        expect(len(line) == len(places) + 1, f"{len(places)} numbers in a row of {name}", line, "complete it")
        for place, value in zip(places, line[1:], strict=True):
            if value == "":
                continue
            own = {axis: label_of(one) for axis, one in block.get("at", {}).items()}
            at = {**own, block["down"]: label_of(line[0]), **place}
            found.append(
                Reported(at, *_parsed(value), _claimed(block, at), quantity=quantity, not_run=block.get("not_run"))
            )
    return found


def _parsed(value: Any) -> tuple[str, float | None, float | None]:
    """
    >>> _parsed("69.65 ± 0.74"), _parsed(9.65), _parsed("diverge")
    (('69.65 ± 0.74', 69.65, 0.74), ('9.65', 9.65, None), ('diverge', None, None))
    """
    if isinstance(value, (int, float)):
        return f"{value:.2f}", float(value), None
    both = re.fullmatch(r"([0-9.]+) ± ([0-9.]+)", value)
    if both:
        return value, float(both[1]), float(both[2])
    if re.search(r"\d", value):
        raise CloisterError(f'Expected a number, "69.65 ± 0.74" or a word, found {value!r}: correct it.')
    return str(value), None, None


def _claimed(block: Mapping[str, Any], at: Mapping[str, str]) -> float | str | None:
    """What the block says: a number, a reason, or nothing at all for what is not private; by default the axis's."""
    if "claimed_epsilon" in block:
        claimed = block["claimed_epsilon"]
        return None if claimed == "none" else claimed
    return float(at["epsilon"]) if "epsilon" in at else None
