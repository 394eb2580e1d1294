"""What a run is, as one hash: values as strict JSON has them, and what is written of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


def configuration_hash(description: Mapping[str, Any]) -> str:
    """The identity of a run: a hash of all that has a bearing on its result or its price, except the data."""
    return hashlib.sha256(json.dumps(plain(description), sort_keys=True).encode()).hexdigest()


def plain(value: Any) -> Any:
    """A value as strict JSON has it: infinities and NaN become words."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def as_json(value: Any) -> bytes:
    """The value as a file that people can read."""
    return (json.dumps(plain(value), indent=2) + "\n").encode()
