"""In which settings the runs of a study differ, so that no table compares what is not alike without a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloister.runs.report.comparison import series_name
from cloister.runs.signatures import introspected
from cloister.studies.cells import Cell

_NOT_COMPARED = ("method", "epsilon", "delta", "noise", "noise_multiplier", "seed")
"""What makes a method, says how private it is, or is told by tables in a column of its own."""

_LACKING = {"mode": "sound", "clipping": "clip"}
"""What a method does that has no such key."""


def differing(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """By series, the settings in which the cells differ beyond method, epsilon and seed: keys of all runs, and keys
    that several methods have. A method that lacks a key of the others has None there."""
    values = {series_name(cell.label, cell.swept): cell.experiment.values for cell in cells}
    keys = dict.fromkeys(key for own in values.values() for key in own if key not in _NOT_COMPARED)
    common = {key.name for key in introspected().method_keys("dp_fedavg")} | {
        *("cohort", "sampling_rate", "clients_per_round", "rounds")
    }
    found: list[str] = []
    for key in keys:
        whose = values.values() if key in _LACKING else [own for own in values.values() if key in own]
        given = [own.get(key, _LACKING.get(key)) for own in whose]
        missing = key in common and len(given) < len(values)
        if missing or any(one != given[0] for one in given):
            found.append(key)
    return {label: {key: own.get(key) for key in found} for label, own in values.items()}
