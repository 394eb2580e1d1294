"""Schemas as TOML files, and as whatever somebody gives for one."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.data.user.schema import Schema
from cloister.errors import CloisterError


def schema_of(schema: Schema | Mapping[str, Any] | str | Path) -> Schema:
    """A schema from the path of a TOML file, a dict, or as it is."""
    if isinstance(schema, Schema):
        return schema
    return read_toml(schema) if isinstance(schema, (str, Path)) else Schema.from_dict(schema)


def read_toml(path: str | Path) -> Schema:
    """A schema from a TOML file; what is wrong with it is said with the file's name."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise CloisterError(
            f"Expected a readable schema, found {str(path)!r} ({error.strerror}): check the path."
        ) from None
    except (ValueError, RecursionError) as error:  # bad TOML, or no UTF-8
        raise CloisterError(f"Expected valid TOML in {path}, found an error ({error}): fix that line.") from None
    try:
        return Schema.from_dict(values)
    except CloisterError as error:
        raise CloisterError(f"{str(error).removesuffix('.')} (in {path}).") from None


def toml_text(values: Mapping[str, Any], comments: Mapping[str, Mapping[str, str]] | None = None) -> str:
    """Plain values of a schema as TOML; `comments` stand behind keys of columns, those of "" behind other keys."""
    said = comments or {}
    lines = _lines({name: value for name, value in values.items() if name != "columns"}, said.get("", {}))
    for name, column in values["columns"].items():
        lines += ["", f"[columns.{_key(name)}]", *_lines(column, said.get(name, {}))]
    return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Any], comments: Mapping[str, str]) -> list[str]:
    behind = {key: f"  # {comment}" for key, comment in comments.items()}
    return [f"{_key(key)} = {toml_value(value)}{behind.get(key, '')}" for key, value in values.items()]


def toml_value(value: Any) -> str:
    """A value as TOML writes it.

    >>> toml_value({"a b": [1, True, "x"]})
    '{"a b" = [1, true, "x"]}'
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)} = {toml_value(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
