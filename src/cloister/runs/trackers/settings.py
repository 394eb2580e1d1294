"""What trackers share: whether their package is there, and what a run is, as short texts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloister.runs.callbacks import ABOUT

if TYPE_CHECKING:
    from cloister.privacy.certificate import Certificate
    from cloister.privacy.description import RunDescription

# By the seed noise could be removed from a simulation; the others are long, and about single clients.
_LEFT_OUT = ("seed", "noise_multipliers", "task/sizes", "task/client_names", "model/shapes", "model/behavior")


def settings_of(description: RunDescription) -> dict[str, str]:
    """The settings of a run by name (`method/local/lr`), with its identity, and with what the names of numbers mean."""
    flat = _flat(description.to_json())
    kept = {name: value for name, value in flat.items() if not name.startswith(_LEFT_OUT)}
    return {"about": ABOUT, "configuration_sha256": description.configuration_hash, **kept}


def _flat(values: Mapping[str, Any], scope: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in values.items():
        found |= _flat(value, f"{scope}{name}/") if isinstance(value, Mapping) else {f"{scope}{name}": str(value)}
    return found


def certificate_of(certificate: Certificate) -> tuple[str, str]:
    """The text of a certificate, as its file has it, and a hash of that."""
    text = f"{certificate}\n"
    return text, hashlib.sha256(text.encode()).hexdigest()
