"""The cells of a comparison: many methods on the same data, at the same epsilons, over seeds and values of any key.

    epsilons = [8.0, 2.0]          the privacy budgets; every private method is run at each
    seed = [0, 1, 2]               keys of every run, here or under [shared]; a list runs every value
    [shared]
    [methods.NAME]                 one method a table, with the keys that are its own; `method` where NAME is a label,
                                   such as that of a method of another package: method = "package.module:function"

A file of a single run is a comparison, too: of that method, over whatever has a list.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, expect, expect_type, nearest
from cloister.runs.choices import PARTS
from cloister.runs.config import Experiment, method_info
from cloister.runs.config_file import load
from cloister.runs.keys import Key
from cloister.runs.signatures import introspected
from cloister.runs.task_cache import TaskCache
from cloister.studies.cells import Cell, expect_apart, experiment_of
from cloister.studies.sweeps import choices_in, keys_of_first, product, swept_in

Source = str | Path | Mapping[str, Any]
"""A file, or what one would hold."""


@dataclass(frozen=True)
class _Plan:
    """A comparison as it is written: keys of all runs, keys of each label, and what was given on top of both."""

    epsilons: list[float] | None
    shared: dict[str, Any]
    labels: dict[str, dict[str, Any]]
    over: dict[str, Any]
    flat: bool
    """Whether it is the file of a single run."""


def planned(source: Source, overrides: Iterable[str] | Mapping[str, Any] = ()) -> list[Cell]:
    """Every run that the file asks for, built before the first one starts."""
    plan, tasks = _read(source, overrides), TaskCache()
    cells: list[Cell] = []
    used: set[str] = set()
    for label, own in plan.labels.items():
        found, known = _cells(plan, label, own, tasks)
        cells += found
        used |= known
    for key in {**plan.shared, **plan.over}:
        expect(key in used, "keys that some method of the comparison has", key, nearest(key, used))
    expect(bool(cells), "at least one run", "epsilons without a number", "write epsilons = [8.0, 2.0] on top")
    expect_apart(cells)
    return cells


def _cells(plan: _Plan, label: str, own: Mapping[str, Any], tasks: TaskCache) -> tuple[list[Cell], set[str]]:
    """The cells of a label, and the keys that some of them have."""
    whole = {**plan.shared, **own, **plan.over}
    chosen = choices_in(whole)
    seen = [_keys(None if plan.flat else label, values) for values in chosen]
    known = {name for keys, _ in seen for name in keys}
    parts = [part for part in PARTS if isinstance(whole.get(part), list)]
    cells = []
    for values, (keys, first) in zip(chosen, seen, strict=True):
        # What only some of the methods or choices have is left out of the others; what nobody has is refused below.
        kept = {key: one for key, one in values.items() if key in keys or (key in own and key not in known)}
        several = {part: [kept[part]] for part in parts if part in kept} | swept_in(keys, kept)
        if method_info(first).unit == "nobody":
            for key in ("epsilon", "delta"):
                if key not in own:
                    kept.pop(key, None)
                    several.pop(key, None)
        elif method_info(first).unit == "client" and isinstance(kept.get("epsilon"), list):
            several.setdefault("epsilon", _epsilons(kept["epsilon"]))  # clients have no epsilon of their own here
        elif plan.epsilons is not None and "epsilon" not in (() if plan.flat else own):
            several["epsilon"] = plan.epsilons
        for swept in product(_in_order(several)):
            experiment = _built(None if plan.flat else label, {**kept, **swept}, tasks)
            alone = [key for key, value in swept.items() if isinstance(value, list) and len(several[key]) == 1]
            exact = {key: experiment.values.get(key, value) for key, value in swept.items() if key not in alone}
            cells.append(Cell(label, exact, experiment))
    return cells, known


def _in_order(several: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Whatever the order in which keys are given, cells have the same names; the seed changes fastest."""
    last = {"epsilon": -1, "seed": 1}
    return {key: several[key] for key in sorted(several, key=lambda key: (last.get(key, 0), key))}


def _built(label: str | None, keys: Mapping[str, Any], tasks: TaskCache) -> Experiment:
    with _said_of(label):
        return experiment_of(keys, tasks)


def _keys(label: str | None, values: Mapping[str, Any]) -> tuple[dict[str, Key], dict[str, Any]]:
    with _said_of(label):
        return keys_of_first(introspected(), values)


@contextmanager
def _said_of(label: str | None) -> Iterator[None]:
    """Errors in here name the table that they are about, where there are several."""
    try:
        yield
    except CloisterError as error:
        if label is None:
            raise
        raise type(error)(f"In [methods.{label}]: {error}") from error


def _read(source: Source, overrides: Iterable[str] | Mapping[str, Any]) -> _Plan:
    if isinstance(overrides, Mapping):
        over = {key: _as_lists(one) for key, one in overrides.items()}
    else:
        over = {key: _listed(one) for key, one in load(None, overrides).items()}
    expect_type("source", source, (str, Path, Mapping), "a file, or a mapping with what one would hold")
    values: dict[str, Any] = _as_lists(source) if isinstance(source, Mapping) else {**load(Path(source))}
    if "epsilons" in over:
        values["epsilons"] = over.pop("epsilons")
        if "epsilon" in over:
            raise CloisterError("Expected epsilon or epsilons, found both: give epsilons=[8,2] alone.")
    epsilons = _epsilons(values.pop("epsilons")) if "epsilons" in values else None
    if "methods" not in values and "shared" not in values:
        return _flat(epsilons, values, over)
    return _of_methods(source, epsilons, values, over)


def _of_methods(source: Source, epsilons: list[float] | None, values: dict[str, Any], over: dict[str, Any]) -> _Plan:
    methods = values.pop("methods", None)
    if not isinstance(methods, Mapping) or not methods:
        where = "the mapping" if isinstance(source, Mapping) else str(source)
        raise CloisterError(
            f"Expected epsilons, a table [shared] and tables [methods.NAME] in {where}, found no methods: see "
            "experiments/digits-methods.toml."
        )
    shared = _table(values.pop("shared", {}), "shared")
    for key in values:
        expect(key not in shared, f"one value for {key}", "one on top and one under [shared]", "give it once")
    shared = {**values, **shared}
    for key, remedy in (("epsilon", "write epsilons = [8.0, 2.0] on top"), ("method", "name it as [methods.NAME]")):
        expect(key not in {**shared, **over}, "keys that all runs share", key, remedy)
    labels = {label: {"method": label, **_table(table, label)} for label, table in methods.items()}
    return _Plan(epsilons, shared, labels, over, flat=False)


def _flat(epsilons: list[float] | None, values: dict[str, Any], over: dict[str, Any]) -> _Plan:
    """A single run's keys: one label, or one for each of several methods, which then share the rest."""
    whole = {**values, **over}
    methods = whole.pop("method", PARTS["method"].default)
    if not isinstance(methods, list):
        return _Plan(epsilons, {}, {_label(methods): {"method": methods, **whole}}, {}, flat=True)
    expect(bool(methods), "at least one value for method", methods, "write method = [...] with some")
    expect(len(set(map(str, methods))) == len(methods), "different values for method", methods, "give each once")
    labels = {_label(one): {"method": one} for one in methods}
    return _Plan(epsilons, whole, labels, {}, flat=True)


def _label(method: Any) -> str:
    return str(method).rpartition(":")[2]


def _as_lists(value: Any) -> Any:
    """Values as a file would hold them: lists for ranges, tuples and arrays, as they are at hand in a notebook.

    >>> _as_lists({"seed": range(3), "lr": (0.1, 0.3)})
    {'seed': [0, 1, 2], 'lr': [0.1, 0.3]}
    """
    if isinstance(value, Mapping):
        return {key: _as_lists(one) for key, one in value.items()}
    if hasattr(value, "tolist"):  # of numpy and torch, a single number too
        return value.tolist()
    return [_as_lists(one) for one in value] if isinstance(value, (list, tuple, range)) else value


def _listed(value: Any) -> Any:
    """Words in brackets without their quotes, as a shell leaves them: model=[mlp,logistic]."""
    if isinstance(value, str):
        meant = _meant(value)
        expect(not meant, "several values in brackets", value, f"write [{meant}], in quotes where the shell needs them")
    if not (isinstance(value, str) and value[:1] + value[-1:] == "[]"):
        return value
    quoted = re.sub(r"[^\[\],\s][^\[\],]*", lambda found: _quoted(found[0].strip()), value)
    return _toml(quoted, value)


def _meant(text: str) -> str:
    """The values that somebody may have meant who has written a list in another way; nothing of any other text.

    >>> _meant("0,1"), _meant("[0 1 2]"), _meant("[0..4]"), _meant("range(3)"), _meant("[0,1]"), _meant("../data")
    ('0,1', '0,1,2', '0,1,2,3,4', '0,1,2', '', '')
    """
    numbers = re.fullmatch(r"\[?\s*([\d.eE+-]+(?:\s*,\s*[\d.eE+-]+)+)|\[?\s*([\d.eE+-]+(?:\s+[\d.eE+-]+)+)\s*\]?", text)
    if numbers:
        return numbers[1] or ",".join(numbers[2].split())
    span = re.fullmatch(r"\[?\s*(\d+)\s*\.{2,}\s*(\d+)\s*\]?|range\((\d+)\)", text)
    if span is None:
        return ""
    whole = range(int(span[1]), int(span[2]) + 1) if span[1] else range(int(span[3]))
    return ",".join(map(str, whole[:10])) + ",..." * (len(whole) > 10)


def _quoted(text: str) -> str:
    return text if _toml(text) is not None else json.dumps(text)


def _toml(text: str, otherwise: Any = None) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return otherwise


def _epsilons(found: Any) -> list[float]:
    """The budgets that a file asks for."""
    remedy = "write epsilons = [8.0, 2.0] on top"
    expect(isinstance(found, list), "epsilons to be a list of numbers", found, remedy)
    for one in found:
        number = isinstance(one, (int, float)) and not isinstance(one, bool)
        expect(number and 0 < one < math.inf, "epsilons to be positive numbers", one, remedy)
    expect(len(set(found)) == len(found), "different epsilons", found, "give each once")
    return [float(one) for one in found]


def _table(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise CloisterError(f"Expected [{name}] to be a table of keys, found {value!r}: write one key a line below it.")
