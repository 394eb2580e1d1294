"""The cells of a paper's table: every row at every value of every axis, as the keys of a run.

A key takes its value from, the later the stronger: [shared] and the file's axes, [methods.NAME], the axes of that
method, the scale, and whoever runs it. A list of values is an axis of its own, named after its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache, partial
from itertools import product
from typing import Any

from cloister.errors import CloisterError, expect, nearest
from cloister.runs.choices import PARTS
from cloister.runs.config import Experiment, build, method_info, parts_of
from cloister.runs.resolution import keys_by_name
from cloister.runs.signatures import introspected
from cloister.runs.task_cache import TaskCache
from cloister.studies.cells import Cell
from cloister.studies.papers.files import PaperFile
from cloister.studies.papers.reported import label_of
from cloister.studies.papers.scale import Scale

BUDGET = {"epsilon", "delta", "noise_multiplier", "allow_large_delta"}
"""Keys that a method without privacy does without."""
ABSENT = "none"
"""What a key is set to where it shall not be given, though others share it."""
Axes = dict[str, dict[str, dict[str, Any]]]
"""By name, what the values of each are called, and the keys that each stands for."""


@dataclass(frozen=True)
class PaperCell:
    """One run of a table, but for the seed."""

    method: str
    """The row, as the paper calls it."""
    axes: dict[str, str]
    keys: dict[str, Any]
    """Of the run; a seed is missing."""
    reported_as: str
    """The row of the paper whose number stands beside it."""
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Keys that are not as in the paper's setting: its value, and the one here (None: the default)."""

    @property
    def name(self) -> str:
        """In words."""
        return ", ".join([self.method, *(f"{axis} {label}" for axis, label in self.axes.items())])

    @property
    def at(self) -> dict[str, str]:
        """Where the paper's number stands."""
        return {"method": self.reported_as, **self.axes}

    @property
    def replicates(self) -> bool:
        """Whether it does what the authors ran, in place of what is proven."""
        return self.reported_as != self.method

    def run(self, seed: int, tasks: TaskCache) -> Cell:
        """The run with a seed, as studies run it."""
        return Cell(self.method, {**self.axes, "seed": seed}, self.experiment(seed, tasks))

    def experiment(self, seed: int, tasks: TaskCache | None = None) -> Experiment:
        """The run with a seed. Its keys are checked now, and its data are read when it starts."""
        keys = {**self.keys, "seed": seed}
        try:
            parts = parts_of(keys, PARTS, introspected().run)
            parts.make("method", **parts.make_if_chosen("server"))
            parts.make("cohort")
            parts.make_if_chosen("partition")
        except CloisterError as error:
            raise type(error)(f"In {self.name}: {error}") from error
        return Experiment(parts.resolved, partial(_start, keys, tasks))


def _start(keys: Mapping[str, Any], tasks: TaskCache | None, **options: Any) -> Any:
    return build(keys, tasks).start(**options)


_HOW = ("device", "engine", "memory", "precision", "dtype", "checkpoint_every", "log", "record")
"""Keys that say how a run is computed, kept or watched: no part of a paper's setting."""


def cells_of(
    file: PaperFile, scale: Scale, overrides: Mapping[str, Any] | None = None, rows: str | None = None
) -> list[PaperCell]:
    """All cells of a file at a scale; `rows` is a pattern for their names, such as "DP-FedSAM*"."""
    over = dict(overrides or {})
    found, used = [], set()
    for label in file.table("methods"):
        for cell in _cells_of_method(file, label, scale, over):
            used |= set(cell.keys)
            found.append(cell)
    for key in {**{k: v for k, v in file.table("shared").items() if scale.name == "full"}, **over}:
        expect(key in used, f"keys that some run of {file.name} has", key, nearest(key, used, "remove it"))
    wanted = [cell for cell in found if rows is None or fnmatch(cell.name, rows) or fnmatch(cell.method, rows)]
    names = ", ".join(dict.fromkeys(cell.method for cell in found))
    expect(bool(wanted), f"a pattern for rows of {file.name}", rows, f"rows are {names}")
    return wanted


@dataclass(frozen=True)
class _Method:
    """A table [methods.NAME]: its keys, its axes, and what it says of itself."""

    label: str
    own: dict[str, Any]
    mine: Axes
    reported_as: str
    pinned: list[str]
    """Keys that belong to the method's nature, such as its one round: neither a scale nor a command changes them."""

    @classmethod
    def of(cls, file: PaperFile, label: str) -> _Method:
        table = file.table("methods", label)
        reported_as, axes, pinned = table.pop("reported_as", label), table.pop("axes", {}), table.pop("pinned", [])
        own, swept = _swept({"method": label, **table})
        return cls(label, own, {**swept, **axes}, reported_as, pinned)

    @property
    def private(self) -> bool:
        """Whether it protects anybody, and so has a budget."""
        return method_info(self.own).unit != "nobody"

    def axes(self, common: Axes) -> Axes:
        """Those of the file and its own; without those that are about budgets alone where it has none."""
        every = {**common, **self.mine}
        return every if self.private else {name: axis for name, axis in every.items() if not _about_budgets(axis)}

    def keys(self, shared: Mapping[str, Any], common: Axes, at: Mapping[str, str]) -> dict[str, Any]:
        """Of the cell at these values of the axes, in the order of their strength."""
        keys = dict(shared)
        for name in at:
            keys |= {} if name in self.mine else common[name][at[name]]
        keys |= self.own
        for name in at:
            keys |= self.mine[name][at[name]] if name in self.mine else {}
        return keys


def _cells_of_method(file: PaperFile, label: str, scale: Scale, over: Mapping[str, Any]) -> Iterable[PaperCell]:
    method, only = _Method.of(file, label), scale.only(file)
    if label not in only.get("method", [label]):
        return
    shared, swept = _swept(file.table("shared"))
    common = {name: axis for name, axis in {**swept, **file.table("axes")}.items() if name not in method.own}
    axes = method.axes(common)
    labels = [[one for one in axis if one in only.get(name, axis)] for name, axis in axes.items()]
    for at in (dict(zip(axes, chosen, strict=True)) for chosen in product(*labels)):
        keys = method.keys(shared, common, at)
        changes = {**scale.changes(file, label, keys), **over, **{key: keys[key] for key in method.pinned}}
        papers = _known(keys, method.private, always=method.own)
        as_it_is = scale.name == "full" and not over
        ours = papers if as_it_is else _known({**keys, **changes}, method.private)
        every = {**papers, **ours}
        told = [key for key in every if key not in _HOW and papers.get(key) != ours.get(key)]
        changed = {key: (papers.get(key), ours.get(key)) for key in told}
        yield PaperCell(label, at, ours, method.reported_as, changed)


def _about_budgets(axis: Mapping[str, Mapping[str, Any]]) -> bool:
    return all(set(keys) <= BUDGET for keys in axis.values())


def _swept(table: Mapping[str, Any]) -> tuple[dict[str, Any], Axes]:
    """Plain keys, and an axis for every key with a list of values."""
    lists = {key: value for key, value in table.items() if isinstance(value, list)}
    axes = {key: {label_of(one): {key: one} for one in values} for key, values in lists.items()}
    return {key: value for key, value in table.items() if key not in axes}, axes


def _known(keys: Mapping[str, Any], private: bool, always: Iterable[str] = ()) -> dict[str, Any]:
    """Those keys that the chosen parts have, for what others share is none of theirs; and some, to be refused."""
    known = _names(tuple((part, keys[part]) for part in PARTS if part in keys)) | set(always)
    given = {key: value for key, value in keys.items() if value != ABSENT and key in known}
    return {key: value for key, value in given.items() if private or key not in BUDGET}


@cache
def _names(chosen: tuple[tuple[str, str], ...]) -> set[str]:
    """The keys of a run with these parts."""
    return set(keys_by_name(introspected(), dict(chosen)))
