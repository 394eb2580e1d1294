"""The catalogue as a file, so that help is written and slips are refused without importing torch.

    python -m cloister.runs.catalogue

writes it anew from the functions themselves (`signatures.introspected`); a test fails where it says anything else than
these do. Runs are built by the functions, never by the file.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from cloister.data.paths import is_path, is_there
from cloister.errors import CloisterError
from cloister.runs.choices import PARTS, Catalogue, Choice, MethodFacts
from cloister.runs.keys import Key, kinds_of
from cloister.runs.outside import is_outside

FILE = Path(__file__).with_name("catalogue.json")
Answer = TypeVar("Answer")

_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "none": types.NoneType}
_SAME_TIME = 60.0
"""Seconds within which an installation or a checkout writes all of its files."""


@functools.cache
def stored() -> Catalogue:
    """The catalogue that the file holds."""
    return from_json(json.loads(FILE.read_text(encoding="utf-8")))


def leads_outside(values: Mapping[str, Any]) -> bool:
    """Whether some choice lies in another package or at a path, so that it has to be imported or read anyway."""
    chosen = [values[part] for part in PARTS if part in values]
    there = is_path(values.get("data")) and is_there(values["data"])
    return there or any(is_outside(option) for option in chosen)


def refuse_slips(values: Mapping[str, Any], question: Callable[[Catalogue], object]) -> None:
    """Ask before anything heavy is imported, where the stored catalogue knows all that is chosen."""
    if not leads_outside(values):
        ask(question)


def ask(question: Callable[[Catalogue], Answer]) -> Answer:
    """The answer of the stored catalogue. Where sources were changed since it was written, they confirm a refusal."""
    try:
        return question(stored())
    except CloisterError:
        if not _sources_are_newer():
            raise
    from cloister.runs.signatures import introspected

    if FILE.read_text(encoding="utf-8") == text_of(introspected()):
        with suppress(OSError):  # of an installation that may not be written
            os.utime(FILE)  # none of the changes was one of keys, which need not be found out again
    return question(introspected())


def _sources_are_newer() -> bool:
    written = FILE.stat().st_mtime
    return any(path.stat().st_mtime > written + _SAME_TIME for path in FILE.parents[1].rglob("*.py"))


def to_json(catalogue: Catalogue) -> dict[str, Any]:
    """Plain values."""
    lists = {field.name: _keys_to_json(getattr(catalogue, field.name)) for field in fields(Catalogue)[1:]}
    choices = {
        part: {option: _choice_to_json(choice) for option, choice in known.items()}
        for part, known in catalogue.choices.items()
    }
    return {"choices": choices, **lists}


def from_json(found: Mapping[str, Any]) -> Catalogue:
    """The inverse of `to_json`."""
    choices = {
        part: {option: _choice_from_json(f"{part} {option}", choice) for option, choice in known.items()}
        for part, known in found["choices"].items()
    }
    owners = {"own_data": "data PATH", "run": "every run", "plan": "every plan", "plan_help": "every plan"}
    owners["model_input"] = "a model without data"
    return Catalogue(choices, **{name: _keys_from_json(owner, found[name]) for name, owner in owners.items()})


def _choice_to_json(choice: Choice) -> dict[str, Any]:
    facts = None if choice.facts is None else asdict(choice.facts)
    known = {"takes": list(choice.takes), "text": choice.text, "facts": facts}
    return {**{name: value for name, value in known.items() if value}, "keys": _keys_to_json(choice.keys)}


def _choice_from_json(owner: str, found: Mapping[str, Any]) -> Choice:
    facts = MethodFacts(**found["facts"]) if "facts" in found else None
    keys = _keys_from_json(owner, found["keys"])
    return Choice(keys, tuple(found.get("takes", ())), found.get("text", ""), facts)


def _keys_to_json(keys: Iterable[Key]) -> dict[str, Any]:
    """By name: the kinds of its value, its default where it has one, its help, and what else is said of it."""
    found = {}
    for key in keys:
        given = {} if key.default is inspect.Parameter.empty else {"default": key.default}
        more = {"is_path": key.is_path, "group": key.group}
        kinds = [_kind_to_json(kind) for kind in kinds_of(key.kind)]
        found[key.name] = {
            "kinds": kinds,
            **given,
            "help": key.help,
            **{name: one for name, one in more.items() if one},
        }
    return found


def _keys_from_json(owner: str, found: Mapping[str, Any]) -> tuple[Key, ...]:
    return tuple(_key_from_json(name, owner, dict(about)) for name, about in found.items())


def _key_from_json(name: str, owner: str, about: dict[str, Any]) -> Key:
    kind = functools.reduce(operator.or_, map(_kind_from_json, about.pop("kinds")))
    return Key(name, owner, kind, about.pop("default", inspect.Parameter.empty), **about)


def _kind_to_json(kind: Any) -> Any:
    """A type by its name, a list by that of its elements, words by themselves."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return {"one of": list(typing.get_args(kind))}
    if origin is list:
        return {"list of": _kind_to_json(typing.get_args(kind)[0])}
    return next(name for name, known in _TYPES.items() if known is kind)


def _kind_from_json(found: Any) -> Any:
    if isinstance(found, str):
        return _TYPES[found]
    if "one of" in found:
        return Literal[tuple(found["one of"])]
    return types.GenericAlias(list, (_kind_from_json(found["list of"]),))


def text_of(catalogue: Catalogue) -> str:
    """What the file holds: JSON with a line for every key, so that changes can be read."""
    return _laid_out(to_json(catalogue)) + "\n"


def _laid_out(value: Any, indent: str = "") -> str:
    if not isinstance(value, dict) or "kinds" in value or not value:
        return json.dumps(value, ensure_ascii=False)
    rows = [f"{indent} {json.dumps(key)}: {_laid_out(one, indent + ' ')}" for key, one in value.items()]
    return "{\n" + ",\n".join(rows) + f"\n{indent}}}"


def main() -> None:
    """Write the file anew."""
    from cloister.runs.signatures import introspected

    FILE.write_text(text_of(introspected()), encoding="utf-8")


if __name__ == "__main__":
    main()
