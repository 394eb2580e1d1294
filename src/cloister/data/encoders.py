"""Encoders by kind: from the plain values that a model's file holds back to what turns raw rows into inputs.

Beside `encode` and `to_json` an encoder may have:

read(raw)      what `encode`, `labels` and `identity` take as well, so that files are read once
labels(raw)    the labels of these rows; None where there are none
identity(raw)  columns that tell rows apart (a file name, the client), by name, one value for every row
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cloister.errors import CloisterError, Corrupted, nearest, shown

if TYPE_CHECKING:
    from cloister.data.task import Encoder

KINDS: dict[str, str] = {
    "images": "cloister.data.user.image_encoder:ImageEncoder",
    "table": "cloister.data.user.schema:Schema",
}
"""Where the class of each kind lies; it has `from_json`. Imported when needed, because of what they import."""


def encoder_from_json(found: Mapping[str, Any]) -> Encoder:
    """The encoder that gave these values."""
    kind = found.get("kind") if isinstance(found, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise Corrupted(f"Expected an encoder of a known kind, found {shown(kind)}: {nearest(str(kind), KINDS)}.")
    module, _, name = KINDS[str(kind)].partition(":")
    make: Callable[[Mapping[str, Any]], Encoder] = getattr(importlib.import_module(module), name).from_json
    try:
        return make(found)
    except CloisterError:
        raise
    except (TypeError, KeyError, ValueError) as error:
        raise Corrupted(f"Expected an encoder of kind {kind}, found a damaged one ({error}): restore it.") from error
