"""Reading a message's content, which somebody else wrote: a field is there with the type that is wanted, or refused."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cloister.deploy.wire.canonical import JSON
from cloister.deploy.wire.refused import Refused
from cloister.errors import shown


def text(content: Mapping[str, JSON], field: str) -> str:
    """A text.

    >>> text({"reason": 5}, "reason")
    Traceback (most recent call last):
    cloister.deploy.wire.refused.Refused: Expected a text as 'reason', found 5: the sender must send one.
    """
    value = content.get(field)
    if isinstance(value, str):
        return value
    raise _refused("a text", field, value)


def integer(content: Mapping[str, JSON], field: str) -> int:
    """A whole number (True is none)."""
    value = content.get(field)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise _refused("an integer", field, value)


def number(content: Mapping[str, JSON], field: str) -> float:
    """A finite number."""
    value = content.get(field)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    raise _refused("a finite number", field, value)


def yes_or_no(content: Mapping[str, JSON], field: str) -> bool:
    """True or false."""
    value = content.get(field)
    if isinstance(value, bool):
        return value
    raise _refused("true or false", field, value)


def texts(content: Mapping[str, JSON], field: str) -> list[str]:
    """A list of texts."""
    value = content.get(field)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise _refused("a list of texts", field, value)


def integers(content: Mapping[str, JSON], field: str) -> list[int]:
    """A list of whole numbers."""
    value = content.get(field)
    if isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    raise _refused("a list of integers", field, value)


def mapping(content: Mapping[str, JSON], field: str) -> dict[str, JSON]:
    """A mapping from texts to anything."""
    value = content.get(field)
    if isinstance(value, Mapping):
        return dict(value)
    raise _refused("a mapping", field, value)


def _refused(wanted: str, field: str, value: object) -> Refused:
    return Refused(f"Expected {wanted} as {field!r}, found {shown(value)}: the sender must send one.")
