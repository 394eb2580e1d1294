"""The cells of a study: runs that have not begun, each with a name for its row and the keys that vary."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cloister.errors import expect
from cloister.runs.config import Experiment, build
from cloister.runs.task_cache import TaskCache

_LONGEST_VALUE, _LONGEST_NAME = 40, 120
"""Characters of a value and of a whole name, beyond which a hash stands for the rest."""


@dataclass(frozen=True)
class Cell:
    """One run that has not begun."""

    label: str
    """Of its row: a method's name, or whatever the study calls it."""
    swept: Mapping[str, Any]
    """The keys that vary within the study, with their values here; `seed` and `epsilon` among them."""
    experiment: Experiment

    @property
    def folder(self) -> str:
        """The name of its folder: the same whenever the study is run again, and different for every cell."""
        return folder_name(self.label, self.swept)

    @property
    def epsilon(self) -> float | None:
        """The privacy budget that is asked for; None where none is, or one for each client."""
        asked = self.experiment.values.get("epsilon")
        return asked if isinstance(asked, (int, float)) else None

    @property
    def seed(self) -> int:
        """The seed of the simulation."""
        seed = self.experiment.values.get("seed", 0)
        assert isinstance(seed, int)
        return seed

    @property
    def row(self) -> tuple[str, str]:
        """What it has in common with the cells that differ from it in their seed alone."""
        return self.label, json.dumps({key: value for key, value in self.swept.items() if key != "seed"})


def experiment_of(values: Mapping[str, Any], tasks: TaskCache) -> Experiment:
    """A run whose keys were checked and whose data are let go of until it starts: a study may have many of them."""
    made = build(values, tasks)
    return replace(made, start=partial(_start, made.values, tasks), task=None)


def _start(values: Mapping[str, Any], tasks: TaskCache, **options: Any) -> Any:
    return build(values, tasks).start(**options)


def folder_name(label: str, swept: Mapping[str, Any]) -> str:
    """A name that tells what is run, safe on every file system.

    >>> folder_name("by turns", {"epsilon": 8.0, "model": "lab.nets:wide", "seed": 1})
    'by-turns-epsilon-8-model-lab.nets_wide-a35ecffe-seed-1'
    """
    name = "-".join([label.replace(" ", "-"), *(f"{key}-{_in_a_name(value)}" for key, value in swept.items())])
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}-{_hash(name)}"


def _in_a_name(value: Any) -> str:
    """Readable, and with a hash where two values might read the same."""
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, (list, tuple)) and value and not any(isinstance(one, (list, tuple)) for one in value):
        text = "_".join(map(_in_a_name, value))
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = re.sub(r"[^\w.+-]", "_", text, flags=re.ASCII)[:_LONGEST_VALUE]
    return plain if plain == text else f"{plain}-{_hash(json.dumps(value))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def expect_apart(cells: Iterable[Cell]) -> None:
    """Refuse labels that cannot be names of folders, and cells that would share one."""
    seen: set[str] = set()
    remedy = "rename [methods.NAME], and say in it which method it is (method = ...)"
    for cell in cells:
        plain = re.fullmatch(r"[\w. -]+", cell.label) and not cell.label.startswith(".")
        expect(bool(plain), "a name of letters, digits, spaces, dots and dashes", cell.label, remedy)
        expect(cell.folder not in seen, "runs with folders of their own", cell.folder, "give it another name")
        seen.add(cell.folder)
