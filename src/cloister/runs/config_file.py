"""A run as one flat set of keys: from a TOML file, from the command line, and back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, shown

Value = str | int | float | bool | list[float] | list[str]


def load(path: Path | None, overrides: Iterable[str] = ()) -> dict[str, Value]:
    """The keys of a TOML file, with `key=value` words from the command line on top."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise CloisterError(
                f"Expected a readable config file, found {str(path)!r} ({error.strerror}): check the name."
            ) from None
        except (ValueError, RecursionError) as error:  # bad TOML, no UTF-8, or numbers of thousands of digits
            raise CloisterError(f"Expected valid TOML in {path}, found an error ({error}): fix that line.") from None
    over: dict[str, Any] = {}
    for word in overrides:
        key, value = _parse(word)
        if key in over:
            found = f"{shown(over[key])} and {shown(value)}"
            raise CloisterError(f"Expected one value for {key}, found {found}: give it once.")
        over[key] = value
    return values | over


def _parse(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise CloisterError(f"Expected key=value, found {word!r}: write, for instance, rounds=20.")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key, text


def toml_text(values: Mapping[str, Value]) -> str:
    """Keys with their values as a config file."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
