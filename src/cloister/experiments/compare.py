"""Many methods side by side, on the same data, at the same epsilons: one file says which.

epsilons = [8.0, 2.0]          the privacy budgets; every private method is run at each
[shared]                       keys of every run
[methods.NAME]                 one method a table, with the keys that are its own; `method` where NAME is a label
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect, nearest
from cloister.experiments.config import Experiment, build, known_keys, load
from cloister.experiments.folder import RunFolder
from cloister.methods import CARDS


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
    """Every run that the file asks for, built before the first one starts."""
    over = load(None, overrides)
    values = {**load(path), **({"epsilons": over.pop("epsilons")} if "epsilons" in over else {})}
    unknown = set(values) - {"epsilons", "shared", "methods"}
    methods: Any = values.get("methods")
    epsilons: Any = values.get("epsilons", [])
    if unknown or not isinstance(methods, Mapping) or not isinstance(epsilons, list) or not methods:
        raise CloisterError(
            f"Expected epsilons, a table [shared] and tables [methods.NAME] in {path}, found "
            f"{', '.join(values) or 'nothing'}: see experiments/digits-methods.toml."
        )
    shared = _table(values.get("shared", {}), "shared")
    _refuse_misplaced({**shared, **over})
    found: list[Planned] = []
    used: set[str] = set()
    for label, table in methods.items():
        own = {"method": label, **_table(table, label)}
        keys = {**shared, **own, **over}
        known = known_keys(keys)
        used |= known
        keys = {key: value for key, value in keys.items() if key in known or key in own}
        private = CARDS[keys["method"]].unit != "nobody"
        budgets: list[dict[str, Any]] = [{"epsilon": e} for e in epsilons] if private else [{}]
        if not private:
            keys.pop("delta", None)
        found += [Planned(label, budget.get("epsilon"), _built(label, {**keys, **budget})) for budget in budgets]
    for key in {**shared, **over}:
        expect(key in used, "keys that some method of the comparison has", key, nearest(key, used))
    _expect_apart(found)
    return found


def _built(label: str, keys: Mapping[str, Any]) -> Experiment:
    try:
        return build(keys)
    except CloisterError as error:
        raise type(error)(f"In [methods.{label}]: {error}") from error


def _refuse_misplaced(shared: Mapping[str, Any]) -> None:
    for key, remedy in (("epsilon", "write epsilons = [8.0, 2.0] on top"), ("method", "name it as [methods.NAME]")):
        expect(key not in shared, "keys that all runs share", key, remedy)


def _expect_apart(runs: list[Planned]) -> None:
    """Every run has a folder of its own, inside the comparison's."""
    expect(bool(runs), "at least one run", "epsilons without a number", "write epsilons = [8.0, 2.0] on top")
    names = [run.folder for run in runs]
    for run in runs:
        plain = re.fullmatch(r"[\w. -]+", run.label) and not run.label.startswith(".")
        expect(bool(plain), "a name of letters, digits, spaces, dots and dashes", run.label, "rename [methods.NAME]")
        expect(names.count(run.folder) == 1, "runs with folders of their own", run.folder, "give it another name")


def _table(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise CloisterError(f"Expected [{name}] to be a table of keys, found {value!r}: write one key a line below it.")


def compare(path: Path, folder: Path, overrides: list[str]) -> Iterator[tuple[Planned, RunFolder]]:
    """Run them one after the other, each into a folder of its own.

    A comparison that was interrupted goes on where it stopped: runs that are there already, with the same settings,
    are taken as they are.
    """
    for run in planned(path, overrides):
        own = folder / run.folder
        begun = own.exists()
        if begun and (own / "config.toml").read_text() != run.experiment.toml:
            raise CloisterError(
                f"Expected the settings with which {own} was run, found others: use another --folder, or remove it."
            )
        if not begun or not RunFolder.open(own).finished:
            run.experiment.start(folder=own, config=run.experiment.toml, progress=None, resume=begun)
        yield run, RunFolder.open(own)
