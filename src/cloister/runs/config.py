"""A run as one flat set of keys: from a TOML file, from the command line, and back.

Which keys there are is in `keys.py`.
"""

from __future__ import annotations

import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cloister import data, methods
from cloister.core.schedules import needs_rounds
from cloister.errors import CloisterError, nearest, shown
from cloister.methods.registry import MethodInfo, info_of
from cloister.runs import outside
from cloister.runs.keys import (
    PARTS,
    Key,
    all_keys,
    choice,
    converted,
    function_of,
    keys_of,
    run_groups,
    run_keys,
    takes,
)
from cloister.runs.model_source import ModelSource
from cloister.runs.run import run as run_function

Value = str | int | float | bool | list[float] | list[str]


def load(path: Path | None, overrides: Iterable[str] = ()) -> dict[str, Value]:
    """The keys of a TOML file, with `key=value` words from the command line on top."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text())
        except OSError as error:
            raise CloisterError(
                f"Expected a readable config file, found {str(path)!r} ({error.strerror}): check the name."
            ) from None
        except (ValueError, RecursionError) as error:  # bad TOML, no UTF-8, or numbers of thousands of digits
            raise CloisterError(f"Expected valid TOML in {path}, found an error ({error}): fix that line.") from None
    over: dict[str, Any] = {}
    for word in overrides:
        key, value = _parse(word)
        if key in over:
            found = f"{shown(over[key])} and {shown(value)}"
            raise CloisterError(f"Expected one value for {key}, found {found}: give it once.")
        over[key] = value
    return values | over


def _parse(word: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise CloisterError(f"Expected key=value, found {word!r}: write, for instance, rounds=20.")
    try:
        return key, tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key, text


@dataclass(frozen=True)
class Experiment:
    """A run, built from keys and ready to start: `start()`."""

    values: dict[str, Value]
    start: Callable[..., Any]

    @property
    def toml(self) -> str:
        """All keys with their values, defaults included, as a config file."""
        return "".join(f"{key} = {_toml_value(value)}\n" for key, value in self.values.items())


def build(values: Mapping[str, Any]) -> Experiment:
    """Check the keys, fill in the defaults, and build the parts. Nothing is run or written."""
    parts = _Parts.resolve(values, _part_names(values), run_keys())
    made = parts.make("method", **parts.make_if_chosen("server"))
    task = parts.make("data", **parts.make_if_chosen("partition"))
    start = partial(
        run_function,
        made,
        task,
        cohort=parts.make("cohort"),
        model=ModelSource(parts.chosen["model"], parts.arguments("model", shape=task.shape, classes=task.outputs)),
        **{key.name: parts.resolved[key.name] for key in run_keys() if key.name in parts.resolved},
    )
    return Experiment(parts.resolved, start)


def build_task(values: Mapping[str, Any]) -> tuple[data.Task, str]:
    """The data of a run alone, dealt to clients, and the partition's name."""
    parts = _Parts.resolve(values, _part_names(values, ("data", "partition")), [])
    return parts.make("data", **parts.make_if_chosen("partition")), parts.chosen.get("partition", "own")


def parts_of(values: Mapping[str, Any], among: Iterable[str], more: list[Key]) -> _Parts:
    """Some parts of a run with these keys; unknown keys are refused."""
    return _Parts.resolve(values, _part_names(values, among), more)


def method_keys(name: str) -> list[Key]:
    """The keys of one method."""
    return keys_of("method", choice("method", name))


def method_info(values: Mapping[str, Any]) -> MethodInfo:
    """What is known of the method that is chosen here; one that was not registered is made, to see what it says."""
    name = _option("method", values)
    if name in methods.REGISTRY:
        return methods.REGISTRY[name]
    parts = _Parts({"method": name}, _resolved(keys_of("method", name), values))
    return info_of(function_of("method", name), parts.make("method"))


def known_keys(values: Mapping[str, Any]) -> set[str]:
    """The keys of the parts that are chosen here, and of every run."""
    chosen = _chosen(values, _part_names(values))
    keys = [key for part, option in chosen.items() for key in keys_of(part, option)] + run_keys()
    return {*chosen, *(key.name for key in keys)}


def grouped_keys(values: Mapping[str, Any]) -> dict[str, list[Key]]:
    """The keys of a run in which these are given, by heading: the choices, those of each choice, and of every run."""
    names = _part_names(values)
    try:
        chosen = _chosen(values, names)
    except CloisterError:  # a method of another package says what it comes with only when it is made
        chosen = {part: _option(part, values) for part in names}
    groups = {"choices": [Key(part, "choice", str, option, PARTS[part].help) for part, option in chosen.items()]}
    groups |= {f"{part} {option}": keys_of(part, option) for part, option in chosen.items()}
    groups |= {f"every run: {group}": keys for group, keys in run_groups().items()}
    _refuse_unknown(values, {key.name for keys in groups.values() for key in keys}, chosen)
    return {heading: keys for heading, keys in groups.items() if keys}


def _option(part: str, values: Mapping[str, Any]) -> str:
    return choice(part, values.get(part, PARTS[part].default))


_TAKEN_BY = {"server": "method", "partition": "data"}


def _part_names(values: Mapping[str, Any], among: Iterable[str] = PARTS) -> tuple[str, ...]:
    """The parts that a run with these keys has: some methods bring their server, and some data are dealt already."""
    owners = {part: function_of(owner, _option(owner, values)) for part, owner in _TAKEN_BY.items() if part in among}
    return tuple(part for part in among if part not in owners or takes(owners[part], part))


def _chosen(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Which option each part is: the one asked for, the method's or the data set's own, or the default."""
    defaults = {**_defaults(values), **(method_info(values).defaults if "method" in names else {})}
    return {part: choice(part, values.get(part, defaults.get(part, PARTS[part].default))) for part in names}


def _defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return data.defaults_of(str(values.get("data", PARTS["data"].default)), values)


@dataclass(frozen=True)
class _Parts:
    """Which option was chosen for each part, and the value of every key."""

    chosen: dict[str, str]
    resolved: dict[str, Any]

    @classmethod
    def resolve(cls, values: Mapping[str, Any], names: tuple[str, ...], more: list[Key]) -> _Parts:
        chosen = _chosen(values, names)
        keys = [key for part, option in chosen.items() for key in keys_of(part, option)] + more
        _refuse_unknown(values, {key.name for key in keys}, chosen)
        return cls(chosen, {**chosen, **_resolved(keys, values)})

    def make(self, part: str, **supplied: Any) -> Any:
        """Build a part from its keys and from what other parts supply, as far as it takes that."""
        spec, option = PARTS[part], self.chosen[part]
        made = function_of(part, option)(**self.arguments(part, **supplied))
        outside.expect_made(part, option, made, spec.made)
        return made

    def arguments(self, part: str, **supplied: Any) -> dict[str, Any]:
        """What a part is built from."""
        spec, option = PARTS[part], self.chosen[part]
        function = function_of(part, option)
        names = [key.name for key in keys_of(part, option) if key.name in self.resolved]
        arguments = {name.removeprefix(spec.prefix): self.resolved[name] for name in names}
        return arguments | {name: given for name, given in supplied.items() if takes(function, name)}

    def make_if_chosen(self, part: str) -> dict[str, Any]:
        """The part by its name, where there is one."""
        return {part: self.make(part)} if part in self.chosen else {}


def _resolved(keys: Iterable[Key], values: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every key that has one."""
    defaults, resolved = _defaults(values), {}
    for key in keys:
        if key.name in values:
            resolved[key.name] = converted(key, values[key.name])
        elif key.default is inspect.Parameter.empty:
            meaning = f" ({key.help})" if key.help else ""
            raise CloisterError(
                f"Expected a value for {key.name}{meaning}, found none: {key.owner} needs it, so "
                f"add {key.name} = ... to the config or {key.name}=... to the command."
            )
        elif key.default is not None:
            resolved[key.name] = defaults.get(key.name, key.default)
    return _with_lr_rounds(keys, resolved, values)


def _with_lr_rounds(keys: Iterable[Key], resolved: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Schedules of learning rates run over the rounds of the run, unless others are given."""
    known = {key.name for key in keys} - resolved.keys()
    for prefix in ("", "server_"):
        name, rounds = f"{prefix}lr_rounds", values.get("rounds")
        if name in known and needs_rounds(resolved.get(f"{prefix}lr_schedule")) and isinstance(rounds, int):
            resolved[name] = rounds
    return resolved


def _refuse_unknown(values: Mapping[str, Any], known: set[str], chosen: Mapping[str, str]) -> None:
    for name in values:
        if name in known or name in chosen:
            continue
        elsewhere = next((key for key in all_keys() if key.name == name), None)
        if elsewhere is not None and elsewhere.owner.split()[0] in chosen:
            part = elsewhere.owner.split()[0]
            raise CloisterError(
                f"Expected keys of {part} {chosen[part]}, found {name!r}, which belongs to {elsewhere.owner}: remove "
                f"it, or choose {elsewhere.owner.replace(' ', ' = ')}."
            )
        raise CloisterError(f"Expected a known key, found {name!r}: {nearest(name, known | set(PARTS))}.")


def _toml_value(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
