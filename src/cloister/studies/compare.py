"""Many methods side by side, on the same data, at the same epsilons: one file says which.

epsilons = [8.0, 2.0]          the privacy budgets; every private method is run at each
[shared]                       keys of every run
[methods.NAME]                 one method a table, with the keys that are its own; `method` where NAME is a label, such
                               as that of a method of another package: method = "package.module:function"
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect, nearest
from cloister.runs.config import Experiment, method_info
from cloister.runs.config_file import load
from cloister.runs.resolution import known_keys
from cloister.runs.signatures import introspected
from cloister.runs.task_cache import TaskCache
from cloister.studies.cells import Cell, expect_apart, experiment_of


def planned(path: Path, overrides: list[str]) -> list[Cell]:
    """Every run that the file asks for, built before the first one starts."""
    over = load(None, overrides)
    values = {**load(path), **({"epsilons": over.pop("epsilons")} if "epsilons" in over else {})}
    unknown = set(values) - {"epsilons", "shared", "methods"}
    methods: Any = values.get("methods")
    epsilons = _epsilons(values.get("epsilons", []))
    if unknown or not isinstance(methods, Mapping) or not methods:
        raise CloisterError(
            f"Expected epsilons, a table [shared] and tables [methods.NAME] in {path}, found "
            f"{', '.join(values) or 'nothing'}: see experiments/digits-methods.toml."
        )
    shared = _table(values.get("shared", {}), "shared")
    _refuse_misplaced({**shared, **over})
    found: list[Cell] = []
    used: set[str] = set()
    tasks = TaskCache()
    for label, table in methods.items():
        own = {"method": label, **_table(table, label)}
        keys = {**shared, **own, **over}
        known = known_keys(introspected(), keys)
        used |= known
        keys = {key: value for key, value in keys.items() if key in known or key in own}
        private = method_info(keys).unit != "nobody"
        budgets: list[dict[str, Any]] = [{"epsilon": e} for e in epsilons] if private else [{}]
        if not private:
            keys.pop("delta", None)
        found += [Cell(label, budget, _built(label, {**keys, **budget}, tasks)) for budget in budgets]
    for key in {**shared, **over}:
        expect(key in used, "keys that some method of the comparison has", key, nearest(key, used))
    expect(bool(found), "at least one run", "epsilons without a number", "write epsilons = [8.0, 2.0] on top")
    expect_apart(found)
    return found


def _epsilons(found: Any) -> list[float]:
    """The budgets that a file asks for."""
    remedy = "write epsilons = [8.0, 2.0] on top"
    expect(isinstance(found, list), "epsilons to be a list of numbers", found, remedy)
    for one in found:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        expect(number and 0 < one < math.inf, "epsilons to be positive numbers", one, remedy)
    return [float(one) for one in found]


def _built(label: str, keys: Mapping[str, Any], tasks: TaskCache) -> Experiment:
    try:
        return experiment_of(keys, tasks)
    except CloisterError as error:
        raise type(error)(f"In [methods.{label}]: {error}") from error


def _refuse_misplaced(shared: Mapping[str, Any]) -> None:
    for key, remedy in (("epsilon", "write epsilons = [8.0, 2.0] on top"), ("method", "name it as [methods.NAME]")):
        expect(key not in shared, "keys that all runs share", key, remedy)


def _table(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise CloisterError(f"Expected [{name}] to be a table of keys, found {value!r}: write one key a line below it.")


def differing(runs: list[Cell]) -> dict[str, dict[str, Any]]:
    """By label, the settings in which the runs differ beyond method and epsilon: keys of all runs, and keys that
    several methods have. A method that lacks a key of the others has None there."""
    values = {run.label: run.experiment.values for run in runs}
    keys = dict.fromkeys(key for own in values.values() for key in own if key not in _NOT_COMPARED)
    common = {key.name for key in introspected().method_keys("dp_fedavg")} | {
        "cohort",
        "sampling_rate",
        "clients_per_round",
        "rounds",
    }
    found: list[str] = []
    for key in keys:
        given = [own[key] for own in values.values() if key in own]
        missing = key in common and key != "mode" and len(given) < len(values)  # without a mode, a method is sound
        if missing or any(one != given[0] for one in given):
            found.append(key)
    return {label: {key: own.get(key) for key in found} for label, own in values.items()}


_NOT_COMPARED = ("method", "epsilon", "delta", "noise", "noise_multiplier")
"""What makes a method, or says how private it is."""
