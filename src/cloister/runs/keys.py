"""The keys of a run: the arguments of the functions that build it, each with its type, its default and its help.

No key is defined here. Which keys a function has is read from its signature (`signatures.py`), and which a choice of
`cloister run` has also from a stored catalogue (`catalogue.py`), for which nothing needs to be imported.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from cloister.errors import CloisterError, number_in, shown

HEADINGS = ("privacy", "training", "computing", "keeping")
"""Under which the keys of every run are listed."""


@dataclass(frozen=True)
class Key:
    """One key: whose it is, its type, its default (`inspect.Parameter.empty` where it must be given), its meaning."""

    name: str
    owner: str
    kind: Any
    default: Any
    help: str
    is_path: bool = False
    group: str = ""
    """The heading under which it is listed, where its owner has several."""

    @property
    def shown_default(self) -> str:
        """The default as a config file would say it; nothing where there is none."""
        if self.default is inspect.Parameter.empty:
            return "required"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return (
            ""
            if self.default is None
            else f"{self.default:g}"
            if isinstance(self.default, float)
            else str(self.default)
        )


def in_groups(keys: Iterable[Key]) -> dict[str, list[Key]]:
    """The keys of every run by heading; those that name none come last, as "other"."""
    groups: dict[str, list[Key]] = {heading: [] for heading in HEADINGS}
    for key in sorted(keys, key=lambda key: not key.group):
        groups.setdefault(key.group or "other", []).append(key)
    return groups


def kinds_of(kind: Any) -> list[Any]:
    """The types that a value may have: those of a union, or the one."""
    several = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return list(typing.get_args(kind)) if several else [kind]


_PLAIN = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
_PLAIN_LISTS = {float: "a list of numbers", int: "a list of whole numbers", str: "a list of words"}


def is_writable(kind: Any) -> bool:
    """Whether a config file can say it, and not only that there is none."""
    kinds = [one for one in kinds_of(kind) if one is not types.NoneType]
    return bool(kinds) and all(one in _PLAIN or typing.get_origin(one) in (typing.Literal, list) for one in kinds)


def refuse_several(name: str, values: list[Any]) -> NoReturn:
    """Several values where a run takes one."""
    raise CloisterError(
        f"Expected one value for {name}, found {shown(values)}: give one of them, or run all of them by "
        "`cloister compare`."
    )


def converted(key: Key, value: Any) -> Any:
    """The value in the key's type; whole numbers pass for floats, and "1/3400" for a number."""
    kinds = kinds_of(key.kind)
    if isinstance(value, list) and not any(typing.get_origin(kind) is list for kind in kinds):
        refuse_several(key.name, value)
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        allowed = [word for kind in kinds for word in typing.get_args(kind)]
        if value in allowed:
            return value
        raise CloisterError(
            f"Expected {key.name} to be one of {', '.join(map(str, allowed))}, found {shown(value)}: choose one."
        )
    lists = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list]
    if str in lists and str not in kinds and isinstance(value, (str, int)) and not isinstance(value, bool):
        inside = str(value)[1:-1] if str(value)[:1] + str(value)[-1:] == "[]" else str(value)
        value = [word.strip() for word in inside.split(",")]  # as on the command line: metrics=accuracy,f1 or [f1]
    if isinstance(value, list) and lists:
        return [converted(replace(key, kind=lists[0]), one) for one in value]
    kinds = [kind for kind in kinds if typing.get_origin(kind) is not list]
    if float in kinds and isinstance(value, str) and (number := number_in(value)) is not None:
        value = number
    if float in kinds and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        value = float(value)
    if key.is_path and isinstance(value, str):
        return str(Path(value).absolute())
    for kind in kinds:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
    wanted = " or ".join([*(_PLAIN[kind] for kind in kinds if kind in _PLAIN), *(_PLAIN_LISTS[one] for one in lists)])
    raise CloisterError(
        f"Expected {key.name} to be {wanted}, found {shown(value)}: {key.help or f'it is a key of {key.owner}'}."
    )
