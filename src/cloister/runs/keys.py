"""The keys of a run: the arguments of the functions that build it, each with its type, its default and its help.

No key is defined here. Functions are chosen by name from the catalogues; those of other packages by
`package.module:function` (`outside.py`). Data may also be a path, for which there is a function, too.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from cloister import data, methods, models
from cloister.core import Cohort, Method, ServerOptimizer
from cloister.core.arguments import group_of, help_of
from cloister.data import partitioners
from cloister.data.arguments import IS_PATH
from cloister.data.user.from_path import from_table_path, is_path, maker_of
from cloister.errors import CloisterError, nearest, number_in, shown
from cloister.runs import outside
from cloister.runs.request import COMPUTING, KEEPING, PRIVACY, TRAINING
from cloister.runs.run import run as run_function
from cloister.server import cohorts, optimizers


@dataclass(frozen=True)
class Part:
    """A part of a run that is chosen by name."""

    help: str
    made: type
    catalogue: Mapping[str, Callable[..., Any]]
    default: str
    prefix: str = ""
    supplied: tuple[str, ...] = ()
    """Arguments that do not come from keys but from the other parts."""
    may_be_outside: bool = False
    common: tuple[str, ...] = ()
    """What a short list names after the default."""


_COMMON_METHODS = ("pfl", "fedavg", "dp_ftrl", "adaptive_clipping", "adap_dp_fl")
PARTS = {
    "method": Part("what is run", Method, methods.CATALOGUE, "dp_fedavg", "", ("server",), True, _COMMON_METHODS),
    "data": Part("what is learned from", data.Task, data.CATALOGUE, "digits", "", ("partition",), may_be_outside=True),
    "partition": Part("how samples are dealt to clients", data.Partition, partitioners.CATALOGUE, "iid"),
    "model": Part("what is trained", nn.Module, models.CATALOGUE, "logistic", "", ("shape", "classes"), True),
    "cohort": Part("who takes part in a round", Cohort, cohorts.CATALOGUE, "poisson"),
    "server": Part("how the server uses the mean update", ServerOptimizer, optimizers.CATALOGUE, "sgd", "server_"),
}
_NOT_KEYS = ("method", "task", "cohort", "model", "folder", "resume", "progress", "config")


@dataclass(frozen=True)
class Key:
    """One key: whose it is, its type, its default (`inspect.Parameter.empty` where it must be given), its meaning."""

    name: str
    owner: str
    kind: Any
    default: Any
    help: str
    is_path: bool = False
    group: str = ""
    """The heading under which it is listed, where its owner has several."""

    @property
    def shown_default(self) -> str:
        """The default as a config file would say it; nothing where there is none."""
        if self.default is inspect.Parameter.empty:
            return "required"
        if isinstance(self.default, bool):
            return str(self.default).lower()
        return (
            ""
            if self.default is None
            else f"{self.default:g}"
            if isinstance(self.default, float)
            else str(self.default)
        )


def all_keys() -> list[Key]:
    """Every key of every choice, for help and for hints."""
    keys = [Key(name, "choice", str, part.default, part.help) for name, part in PARTS.items()]
    for name, part in PARTS.items():
        for option in part.catalogue:
            keys += keys_of(name, option)
    return keys + _signature(from_table_path, "data PATH", "", ("path",)) + run_keys()


def keys_of(part: str, option: str) -> list[Key]:
    """The keys of one choice."""
    spec, function = PARTS[part], function_of(part, option)
    supplied = spec.supplied
    if "partition" in supplied and takes(function, "partition"):
        supplied += ("clients",)  # the partition knows how many there are
    return _signature(function, f"{part} {option}", spec.prefix, supplied)


def run_keys() -> list[Key]:
    """The keys of every run."""
    return _signature(run_function, "every run", "", _NOT_KEYS)


def run_groups() -> dict[str, list[Key]]:
    """The keys of every run by heading; those that name none come last, as "other"."""
    groups: dict[str, list[Key]] = {group.name: [] for group in (PRIVACY, TRAINING, COMPUTING, KEEPING)}
    for key in sorted(run_keys(), key=lambda key: not key.group):
        groups.setdefault(key.group or "other", []).append(key)
    return groups


def keys_in(function: Callable[..., Any], owner: str, without: tuple[str, ...] = ()) -> list[Key]:
    """The keys of any function."""
    return _signature(function, owner, "", without)


def choice(part: str, option: Any) -> str:
    """The name of an option that exists; others are refused."""
    spec = PARTS[part]
    if isinstance(option, str) and option in spec.catalogue:
        return option
    if part == "data" and is_path(option):
        maker_of(option)  # refuses what is not there
        return str(Path(option).absolute())  # so that the run can be resumed from anywhere
    if spec.may_be_outside and outside.is_outside(option):
        outside.load(part, option)
        return str(option)
    more = ", a path of your own data" if part == "data" else ""
    otherwise = "choose one of them" + (f"{more}, or name a package.module:function" if spec.may_be_outside else "")
    close = nearest(str(option), spec.catalogue, otherwise)
    raise CloisterError(f"Expected {part} to be one of {', '.join(spec.catalogue)}, found {shown(option)}: {close}.")


def function_of(part: str, option: str) -> Callable[..., Any]:
    """The function that makes a part: of the catalogue, of a path, or of another package."""
    known = PARTS[part].catalogue
    if option in known:
        return known[option]
    return maker_of(option) if part == "data" and is_path(option) else outside.load(part, option)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters


def _signature(function: Callable[..., Any], owner: str, prefix: str, without: tuple[str, ...]) -> list[Key]:
    keys = []
    for name, parameter in _parameters(function, owner).items():
        if name in without or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise CloisterError(
                f"Expected arguments that can be given by name, found {name} of {owner}: leave out the slash after it."
            )
        annotation = parameter.annotation
        kind = annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation
        if kind is inspect.Parameter.empty:
            kind = type(parameter.default)
        if _writable(kind):
            path = IS_PATH in getattr(annotation, "__metadata__", ())
            group = group_of(annotation)
            keys.append(Key(prefix + name, owner, kind, parameter.default, help_of(annotation), path, group))
        elif parameter.default is inspect.Parameter.empty:
            raise CloisterError(
                f"Expected arguments that a config file can give (numbers, words, true or false), found {name} of "
                f"{owner}: annotate it as one of these, or give it a default."
            )
    return keys


def _parameters(function: Callable[..., Any], owner: str) -> Mapping[str, inspect.Parameter]:
    """The arguments of a function, or of a class, with their types as values."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise CloisterError(
            f"Expected types that exist beside the arguments of {owner}, found that {error}: import it in its module."
        ) from None


def _kinds(kind: Any) -> list[Any]:
    several = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return list(typing.get_args(kind)) if several else [kind]


_PLAIN = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
_PLAIN_LISTS = {float: "a list of numbers", int: "a list of whole numbers", str: "a list of words"}


def _writable(kind: Any) -> bool:
    """Whether a config file can say it, and not only that there is none."""
    kinds = [one for one in _kinds(kind) if one is not types.NoneType]
    return bool(kinds) and all(one in _PLAIN or typing.get_origin(one) in (typing.Literal, list) for one in kinds)


def converted(key: Key, value: Any) -> Any:
    """The value in the key's type; whole numbers pass for floats, and "1/3400" for a number."""
    kinds = _kinds(key.kind)
    if any(typing.get_origin(kind) is typing.Literal for kind in kinds):
        allowed = [word for kind in kinds for word in typing.get_args(kind)]
        if value in allowed:
            return value
        raise CloisterError(
            f"Expected {key.name} to be one of {', '.join(map(str, allowed))}, found {shown(value)}: choose one."
        )
    lists = [typing.get_args(kind)[0] for kind in kinds if typing.get_origin(kind) is list]
    if str in lists and str not in kinds and isinstance(value, (str, int)) and not isinstance(value, bool):
        value = [word.strip() for word in str(value).split(",")]  # as on the command line: metrics=accuracy,f1
    if isinstance(value, list) and lists:
        return [converted(replace(key, kind=lists[0]), one) for one in value]
    kinds = [kind for kind in kinds if typing.get_origin(kind) is not list]
    if float in kinds and isinstance(value, str) and (number := number_in(value)) is not None:
        value = number
    if float in kinds and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        value = float(value)
    if key.is_path and isinstance(value, str):
        return str(Path(value).absolute())
    for kind in kinds:
        if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
            return value
    wanted = " or ".join([*(_PLAIN[kind] for kind in kinds if kind in _PLAIN), *(_PLAIN_LISTS[one] for one in lists)])
    raise CloisterError(
        f"Expected {key.name} to be {wanted}, found {shown(value)}: {key.help or f'it is a key of {key.owner}'}."
    )
