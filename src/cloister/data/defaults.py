"""What goes with a data set unless somebody says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_BY_OWNER = ("qmnist", "femnist", "femnist_digits", "fed_emnist", "har", "heart", "shakespeare")
DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"clients": 300},
    **{name: {"partition": "natural"} for name in _BY_OWNER},
    "shakespeare": {"partition": "natural", "model": "char_lstm"},
}
"""By name; samples that know their owners stay with them."""

_EVERY = {"model": "char_transformer", "every_position": True}


def defaults_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """What goes with a set whose keys have these values."""
    every = name == "shakespeare" and values.get("targets") == "every"
    return {**DEFAULTS.get(name, {}), **(_EVERY if every else {})}
