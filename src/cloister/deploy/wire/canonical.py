"""Canonical JSON: one value has one text, so that its digest and signature mean the value."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import expect, shown

JSON: TypeAlias = Any
"""None, bool, int, float, str, a list of these or a mapping from str to these; `canonical` refuses everything else."""

_MOST_DEPTH = 32
_MOST_BITS = 4096


def canonical(value: JSON) -> bytes:
    """The value as JSON with sorted keys, without spaces, in UTF-8; refuses what would come back as another value.

    >>> canonical({"b": [1, 2.0, None], "a": "é"}).decode()
    '{"a":"é","b":[1,2.0,null]}'
    >>> canonical((1, 2))
    Traceback (most recent call last):
    cloister.errors.CloisterError: Expected a value that JSON brings back as it is, found (1, 2): turn it into a list.
    """
    plain = _plain(value, 0)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def parse_canonical(data: bytes) -> JSON:
    """The value of canonical JSON; refuses every other text of the same value, so that a digest has one preimage."""
    try:
        value = json.loads(data.decode())
        same = canonical(value) == data
    except (ValueError, RecursionError) as error:
        raise Refused(f"Expected canonical JSON, found {shown(data[:60])}: {error}.") from None
    accept_if(same, "canonical JSON", data[:60], "sort keys, leave out spaces and name no key twice")
    return value


def digest_of(data: bytes | memoryview) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _plain(value: object, depth: int) -> object:
    """The value with plain dictionaries, after every part of it was looked at."""
    expect(depth <= _MOST_DEPTH, f"at most {_MOST_DEPTH} levels of JSON", depth, "flatten the value")
    match value:
        case None | bool():
            return value
        case str():
            return _expect_text(value)
        case int():
            expect(value.bit_length() <= _MOST_BITS, f"at most {_MOST_BITS} bits", value, "write it as text")
            return int(value)
        case float():
            expect(math.isfinite(value), "a finite number", value, "leave it out, or write None")
            return float(value)
        case list():
            return [_plain(item, depth + 1) for item in value]
        case Mapping():
            return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
    remedy = (
        "turn it into a list" if isinstance(value, (tuple, set, frozenset)) else "turn it into numbers, texts, lists"
    )
    expect(False, "a value that JSON brings back as it is", value, remedy)
    raise AssertionError


def _key(key: object) -> str:
    expect(isinstance(key, str), "keys that are texts", key, "JSON has no others")
    return _expect_text(str(key))


def _expect_text(text: str) -> str:
    expect(text.isascii() or text.encode(errors="replace").decode() == text, "text in Unicode", text, "it has no UTF-8")
    return str(text)
