"""Encoders made again from what they said of themselves, so that whoever has a run can predict from raw data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cloister.data.task import Encoder
from cloister.errors import Corrupted, nearest, shown


def _table(values: Mapping[str, Any]) -> Encoder:
    from cloister.data.user.schema import Schema

    return Schema.from_json(values)


KINDS: dict[str, Callable[[Mapping[str, Any]], Encoder]] = {"table": _table}
"""What makes an encoder, by the `kind` in its plain values."""


def encoder_from_json(values: Mapping[str, Any]) -> Encoder:
    """The opposite of an encoder's `to_json`."""
    kind = values.get("kind") if isinstance(values, Mapping) else values
    if not isinstance(kind, str) or kind not in KINDS:
        close = nearest(str(kind), KINDS)
        raise Corrupted(f"Expected an encoder of a known kind, found {shown(kind)}: {close}.")
    return KINDS[kind](values)
