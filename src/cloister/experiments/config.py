"""A run as one flat set of keys: from a TOML file, from the command line, and back.

No key is defined here. The keys are the arguments of the functions that build a run: the chosen method, data,
model, cohort and server (the latter's with `server_` in front), and `cloister.run` itself.
"""

from __future__ import annotations

import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloister import cohorts, data, methods, models, servers
from cloister.data import partitions
from cloister.errors import CloisterError, nearest, number_in, shown
from cloister.experiments.meanings import MEANINGS
from cloister.experiments.run import run as run_function

Value = str | int | float | bool | list[float]


@dataclass(frozen=True)
class Part:
    """A part of a run that is chosen by name."""

    catalogue: Mapping[str, Callable[..., Any]]
    default: str
    prefix: str = ""
    supplied: tuple[str, ...] = ()
    """Arguments that do not come from keys but from the other parts."""


PARTS = {
    "method": Part(methods.CATALOGUE, "dp_fedavg", supplied=("server",)),
    "data": Part(data.CATALOGUE, "digits", supplied=("partition", "clients")),
    "partition": Part(partitions.CATALOGUE, "iid"),
    "model": Part(models.CATALOGUE, "logistic", supplied=("shape", "classes")),
    "cohort": Part(cohorts.CATALOGUE, "poisson"),
    "server": Part(servers.CATALOGUE, "sgd", prefix="server_"),
}
_NOT_KEYS = ("method", "task", "cohort", "model", "folder", "resume", "progress", "config")


@dataclass(frozen=True)
class Key:
    """One key: whose it is, its type, and its default (`inspect.Parameter.empty` where it must be given)."""

    name: str
    owner: str
    kind: Any
    default: Any


def all_keys() -> list[Key]:
    """Every key of every choice, for help and for hints."""
    keys = [Key(part, "choice", str, PARTS[part].default) for part in PARTS]
    for part, spec in PARTS.items():
        for option in spec.catalogue:
            keys += _keys_of(part, option)
    return keys + _run_keys()


def method_keys(name: str) -> list[Key]:
    """The keys of one method."""
    return _keys_of("method", _choice("method", name))


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
            raise CloisterError(f"Expected valid TOML in {path}, found an error ({error}): mend that line.") from None
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
    parts = _Parts.settle(values, _part_names(values), _run_keys())
    takes_server = "server" in parts.chosen
    made = parts.make("method", **({"server": parts.make("server")} if takes_server else {}))
    task = parts.make("data", partition=parts.make("partition"))
    start = partial(
        run_function,
        made,
        task,
        cohort=parts.make("cohort"),
        model=partial(parts.make, "model", shape=task.shape, classes=task.classes),
        **{key.name: parts.settled[key.name] for key in _run_keys() if key.name in parts.settled},
    )
    return Experiment(parts.settled, start)


def known_keys(values: Mapping[str, Any]) -> set[str]:
    """The keys of the parts that are chosen here, and of every run."""
    chosen = _chosen(values, _part_names(values))
    keys = [key for part, option in chosen.items() for key in _keys_of(part, option)] + _run_keys()
    return {*chosen, *(key.name for key in keys)}


def _part_names(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts that a run with these keys has: some methods come with a server of their own."""
    method = _choice("method", values.get("method", PARTS["method"].default))
    takes_server = "server" in inspect.signature(PARTS["method"].catalogue[method]).parameters
    return tuple(part for part in PARTS if part != "server" or takes_server)


def _usual(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return data.USUAL.get(str(values.get("data", PARTS["data"].default)), {})


def _chosen(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, str]:
    """Which option each part is: the one asked for, the data set's usual one, or the default."""
    method = methods.USUAL.get(str(values.get("method", PARTS["method"].default)), {})
    usual = {**_usual(values), **method}
    return {part: _choice(part, values.get(part, usual.get(part, PARTS[part].default))) for part in names}


def build_task(values: Mapping[str, Any]) -> tuple[data.Task, str]:
    """The data of a run alone, dealt to clients, and the partition's name."""
    parts = _Parts.settle(values, ("data", "partition"), [])
    return parts.make("data", partition=parts.make("partition")), parts.chosen["partition"]


@dataclass(frozen=True)
class _Parts:
    """Which option was chosen for each part, and the value of every key."""

    chosen: dict[str, str]
    settled: dict[str, Any]

    @classmethod
    def settle(cls, values: Mapping[str, Any], names: tuple[str, ...], more: list[Key]) -> _Parts:
        usual, chosen = _usual(values), _chosen(values, names)
        keys = [key for part, option in chosen.items() for key in _keys_of(part, option)] + more
        _refuse_unknown(values, {key.name for key in keys}, chosen)
        settled: dict[str, Any] = dict(chosen)
        for key in keys:
            if key.name in values:
                settled[key.name] = _convert(key, values[key.name])
            elif key.default is inspect.Parameter.empty:
                raise CloisterError(
                    f"Expected a value for {key.name} ({MEANINGS[key.name]}), found none: {key.owner} needs it, so "
                    f"add {key.name} = ... to the config or {key.name}=... to the command."
                )
            elif key.default is not None:
                settled[key.name] = usual.get(key.name, key.default)
        return cls(chosen, settled)

    def make(self, part: str, **supplied: Any) -> Any:
        """Build a part from its keys and from what other parts supply."""
        spec, option = PARTS[part], self.chosen[part]
        names = [key.name for key in _keys_of(part, option) if key.name in self.settled]
        arguments = {name.removeprefix(spec.prefix): self.settled[name] for name in names}
        return spec.catalogue[option](**arguments, **supplied)


def _choice(part: str, option: Any) -> str:
    known = PARTS[part].catalogue
    close = nearest(str(option), known, otherwise="")
    if not isinstance(option, str) or option not in known:
        raise CloisterError(
            f"Expected {part} to be one of {', '.join(known)}, found {shown(option)}: {close or 'choose one of them'}."
        )
    return str(option)


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


def _keys_of(part: str, option: str) -> list[Key]:
    spec = PARTS[part]
    return _signature(spec.catalogue[option], f"{part} {option}", spec.prefix, spec.supplied)


def _run_keys() -> list[Key]:
    return _signature(run_function, "every run", "", _NOT_KEYS)


def _signature(function: Callable[..., Any], owner: str, prefix: str, without: tuple[str, ...]) -> list[Key]:
    return [
        Key(prefix + name, owner, _kind(parameter.annotation), parameter.default)
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if name not in without
    ]


def _kind(annotation: Any) -> Any:
    """The type alone, where the annotation says in words what the argument means."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is typing.Annotated else annotation


def _convert(key: Key, value: Any) -> Any:
    """The value in the key's type; whole numbers pass for floats, and "1/3400" for a number."""
    several = typing.get_origin(key.kind) in (types.UnionType, typing.Union)
    kinds = list(typing.get_args(key.kind)) if several else [key.kind]
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        allowed = [word for kind in kinds for word in typing.get_args(kind)]
        if value in allowed:
            return value
        raise CloisterError(f"Expected {key.name} to be one of {', '.join(allowed)}, found {shown(value)}: choose one.")
    if isinstance(value, list) and any(typing.get_origin(kind) is list for kind in kinds):
        return [_convert(replace(key, kind=float), one) for one in value]
    kinds = [kind for kind in kinds if typing.get_origin(kind) is not list]
    if float in kinds and isinstance(value, str) and (said := number_in(value)) is not None:
        value = said
    if float in kinds and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        value = float(value)
    for kind in kinds:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
    names = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
    wanted = " or ".join(names[kind] for kind in kinds if kind in names)
    raise CloisterError(f"Expected {key.name} to be {wanted}, found {shown(value)}: {MEANINGS[key.name]}.")


def _toml_value(value: Value) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
