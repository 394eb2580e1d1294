"""A run from its keys: the parts are made by the functions that the keys choose, and put together.

Keys are read in `config_file.py` and resolved in `resolution.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from cloister import data
from cloister.core.schedules import needs_rounds
from cloister.methods.registry import info_of
from cloister.runs import outside, resolution
from cloister.runs.choices import PARTS, MethodFacts
from cloister.runs.config_file import Value, toml_text
from cloister.runs.keys import Key
from cloister.runs.model_source import ModelSource
from cloister.runs.run import run as run_function
from cloister.runs.signatures import MAKERS, facts_of, function_of, introspected, takes
from cloister.runs.task_cache import TaskCache, size_of


@dataclass(frozen=True)
class Experiment:
    """A run, built from keys and ready to start: `start()`."""

    values: dict[str, Value]
    start: Callable[..., Any]
    task: data.Task | None = None
    """What it learns from, where that was loaded already."""
    data_bytes: int = 0
    """What its samples take in memory, as far as that is known."""

    @property
    def toml(self) -> str:
        """All keys with their values, defaults included, as a config file."""
        return toml_text(self.values)


def build(values: Mapping[str, Any], tasks: TaskCache | None = None, task: data.Task | None = None) -> Experiment:
    """Check the keys, fill in the defaults, and build the parts. Nothing is run or written.

    With `tasks`, runs on the same data share them. A `task` that is given takes the place of the data; what the keys
    say of data is then checked, and not loaded.
    """
    run_keys = introspected().run
    unnamed = ("data", "partition") if task is not None and "data" not in values else ()
    parts = parts_of(values, [part for part in PARTS if part not in unnamed], run_keys)
    made = parts.make("method", **parts.make_if_chosen("server"))
    if task is None:
        task = parts.task() if tasks is None else tasks.get(parts.task_key(), parts.task)
    start = partial(
        run_function,
        made,
        task,
        cohort=parts.make("cohort"),
        model=ModelSource(parts.chosen["model"], parts.arguments("model", shape=task.shape, classes=task.outputs)),
        **{key.name: parts.resolved[key.name] for key in run_keys if key.name in parts.resolved},
    )
    return Experiment(parts.resolved, start, task, size_of(task))


def build_task(values: Mapping[str, Any]) -> tuple[data.Task, str]:
    """The data of a run alone, dealt to clients, and the partition's name."""
    parts = parts_of(values, ("data", "partition"), ())
    return parts.task(), parts.chosen.get("partition", "own")


def parts_of(values: Mapping[str, Any], among: Iterable[str], more: Iterable[Key]) -> Parts:
    """Some parts of a run with these keys, ready to be made; unknown keys are refused."""
    known = resolution.resolve(introspected(), values, among, more)
    keys = {key.name for part, option in known.chosen.items() for key in introspected().keys_of(part, option)}
    return Parts(known.chosen, _with_lr_rounds(keys, known.values, values))


def method_info(values: Mapping[str, Any]) -> MethodFacts:
    """What is known of the method that is chosen here."""
    return resolution.method_facts(introspected(), values)


def facts_when_made(name: str, values: Mapping[str, Any]) -> MethodFacts:
    """What a method that was not registered says when it is made."""
    keys = introspected().keys_of("method", name)
    resolved = _with_lr_rounds({key.name for key in keys}, resolution.values_of(keys, values), values)
    return facts_of(info_of(function_of("method", name), Parts({"method": name}, resolved).make("method")))


@dataclass(frozen=True)
class Parts:
    """Which option was chosen for each part, and the value of every key."""

    chosen: dict[str, str]
    resolved: dict[str, Any]

    def make(self, part: str, **supplied: Any) -> Any:
        """Build a part from its keys and from what other parts supply, as far as it takes that."""
        option = self.chosen[part]
        made = function_of(part, option)(**self.arguments(part, **supplied))
        outside.expect_made(part, option, made, MAKERS[part].made)
        return made

    def arguments(self, part: str, **supplied: Any) -> dict[str, Any]:
        """What a part is built from."""
        option = self.chosen[part]
        function = function_of(part, option)
        names = [key.name for key in introspected().keys_of(part, option) if key.name in self.resolved]
        arguments = {name.removeprefix(PARTS[part].prefix): self.resolved[name] for name in names}
        return arguments | {name: given for name, given in supplied.items() if takes(function, name)}

    def make_if_chosen(self, part: str) -> dict[str, Any]:
        """The part by its name, where there is one."""
        return {part: self.make(part)} if part in self.chosen else {}

    def task(self) -> data.Task:
        """The data, dealt to clients."""
        made: data.Task = self.make("data", **self.make_if_chosen("partition"))
        return made

    def task_key(self) -> str:
        """All that the task is made from."""
        chosen = {part: self.chosen[part] for part in ("data", "partition") if part in self.chosen}
        return json.dumps([chosen, *(self.arguments(part) for part in chosen)], sort_keys=True, default=str)


def _with_lr_rounds(known: set[str], resolved: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Schedules of learning rates run over the rounds of the run, unless others are given."""
    for prefix in ("", "server_"):
        name, rounds = f"{prefix}lr_rounds", values.get("rounds")
        open_still = name in known and name not in resolved
        if open_still and needs_rounds(resolved.get(f"{prefix}lr_schedule")) and isinstance(rounds, int):
            resolved[name] = rounds
    return resolved
