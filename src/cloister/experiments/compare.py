"""Many methods side by side, on the same data, at the same epsilons: one file says which.

epsilons = [8.0, 2.0]          the privacy budgets; every private method is run at each
[shared]                       keys of every run
[methods.NAME]                 one method a table, with the keys that are its own; `method` where NAME is a label
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError
from cloister.experiments.config import Experiment, build, known_keys, load
from cloister.experiments.folder import RunFolder

NON_PRIVATE = ("fedavg",)


@dataclass(frozen=True)
class Planned:
    """One run that has not begun."""

    label: str
    epsilon: float | None
    experiment: Experiment

    @property
    def folder(self) -> str:
        """Its folder's name."""
        name = self.label.replace(" ", "-")
        return name if self.epsilon is None else f"{name}-epsilon-{self.epsilon:g}"


def planned(path: Path, overrides: list[str]) -> list[Planned]:
    """Every run that the file asks for, built and checked before the first one starts."""
    values = load(path)
    unknown = set(values) - {"epsilons", "shared", "methods"}
    methods: Any = values.get("methods")
    epsilons: Any = values.get("epsilons", [])
    if unknown or not isinstance(methods, Mapping) or not isinstance(epsilons, list) or not methods:
        raise CloisterError(
            f"Expected epsilons, a table [shared] and tables [methods.NAME] in {path}, found "
            f"{', '.join(values) or 'nothing'}: see experiments/digits-methods.toml."
        )
    shared = {**_table(values.get("shared", {}), "shared"), **load(None, overrides)}
    found: list[Planned] = []
    for label, table in methods.items():
        own = {"method": label, **_table(table, label)}
        keys = {**_fitting(shared, {**shared, **own}), **own}
        budgets: list[dict[str, Any]] = [{}] if keys["method"] in NON_PRIVATE else [{"epsilon": e} for e in epsilons]
        if keys["method"] in NON_PRIVATE:
            keys.pop("delta", None)
        found += [Planned(label, budget.get("epsilon"), build({**keys, **budget})) for budget in budgets]
    return found


def _fitting(shared: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The shared keys that this run has a use for: not every method has a clip, not every cohort a rate."""
    known = known_keys(chosen)
    return {key: value for key, value in shared.items() if key in known}


def _table(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise CloisterError(f"Expected [{name}] to be a table of keys, found {value!r}: write one key a line below it.")


def compare(path: Path, folder: Path, overrides: list[str]) -> Iterator[tuple[Planned, RunFolder]]:
    """Run them one after the other, each into a folder of its own. Those that are there already are taken as they are.

    So a comparison that was interrupted goes on where it stopped.
    """
    for run in planned(path, overrides):
        own = folder / run.folder
        done = own.exists()
        if not done or not RunFolder.open(own).finished:
            run.experiment.start(folder=own, config=run.experiment.toml, progress=None, resume=done)
        yield run, RunFolder.open(own)
