"""Patterns of names: of a model's parameters and of its layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from cloister.errors import CloisterError, expect, nearest, shown


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern is a name's, or that of something in which it lies.

    >>> matches("blocks.0", "blocks.0.head.bias"), matches("*.bias", "blocks.0.head.bias"), matches("head", "head2")
    (True, True, False)
    """
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def chosen(key: str, patterns: Sequence[str], names: Iterable[str], what: str) -> list[str]:
    """The names that some pattern matches, in their order; a pattern that matches none is refused."""
    known = list(names)
    for pattern in patterns:
        if not any(matches(pattern, name) for name in known):
            raise CloisterError(f"Expected {key} to name {what}, found {shown(pattern)}: {close_to(pattern, known)}.")
    return [name for name in known if any(matches(pattern, name) for pattern in patterns)]


def close_to(pattern: str, known: Sequence[str]) -> str:
    """The clause that helps somebody whose pattern matches nothing, or whose name is not there."""
    if not known:
        return "there are none"
    if any(matches(f"*.{pattern}", name) for name in known):
        return f'perhaps you mean "*.{pattern}"'
    some = ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")
    return nearest(pattern, known, f"known are {some}")


def as_patterns(key: str, value: object) -> tuple[str, ...]:
    """One pattern or several, as people give them."""
    found = [one.strip() for one in value.split(",")] if isinstance(value, str) else () if value is None else value
    several = isinstance(found, (list, tuple)) and all(isinstance(one, str) and one for one in found)
    expect(several, f"{key} to be a list of names or patterns", value, 'such as ["blocks.*", "head"]')
    assert isinstance(found, (list, tuple))
    return tuple(found)
