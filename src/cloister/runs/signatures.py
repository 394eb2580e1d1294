"""The functions that the parts of a run are made by, and the keys that their signatures say they have.

Functions are chosen by name from the catalogues of their packages; those of other packages by
`package.module:function` (`outside.py`). Data may also be a path, for which there is a function, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import nn

from cloister import data, methods, models
from cloister.core import Cohort, Method, ServerOptimizer
from cloister.core.arguments import group_of, help_of
from cloister.data import partitioners
from cloister.data.arguments import IS_PATH
from cloister.data.paths import is_path
from cloister.data.user.from_path import from_table_path, maker_of
from cloister.errors import CloisterError
from cloister.methods.registry import MethodInfo
from cloister.runs import outside
from cloister.runs.choices import PARTS, TAKEN_BY, Catalogue, Choice, MethodFacts
from cloister.runs.keys import Key, is_writable
from cloister.runs.plan import plan
from cloister.runs.plan_keys import model_input
from cloister.runs.request import Options
from cloister.runs.run import run
from cloister.server import cohorts, optimizers


@dataclass(frozen=True)
class Makers:
    """What a part is an instance of, and the functions of this package that make one."""

    made: type
    functions: Mapping[str, Callable[..., Any]]


MAKERS = {
    "method": Makers(Method, methods.CATALOGUE),
    "data": Makers(data.Task, data.CATALOGUE),
    "partition": Makers(data.Partition, partitioners.CATALOGUE),
    "model": Makers(nn.Module, models.CATALOGUE),
    "cohort": Makers(Cohort, cohorts.CATALOGUE),
    "server": Makers(ServerOptimizer, optimizers.CATALOGUE),
}
_NOT_RUN = ("method", "task", "cohort", "model", "folder", "resume", "progress", "config")
_NOT_PLAN = ("method", "task", "cohort", "model", "noise_multiplier")
_PLAN_HELP = ("noise_multiplier", "standardize", "validation_share")
"""Keys that the help of a plan lists beside its own: most methods have the first as a key of their own."""


@functools.cache
def introspected() -> Catalogue:
    """The catalogue as the functions themselves say it, each when it is asked for."""
    options = [field.name for field in fields(Options)]
    return Catalogue(
        {part: _Described(part) for part in PARTS},
        own_data=keys_in(from_table_path, "data PATH", without=("path",)),
        run=keys_in(run, "every run", without=_NOT_RUN),
        plan=keys_in(plan, "every plan", without=_NOT_PLAN),
        plan_help=keys_in(
            plan, "every plan", without=tuple(name for name in (*_NOT_PLAN, *options) if name not in _PLAN_HELP)
        ),
        model_input=keys_in(model_input, "a model without data"),
    )


class _Described(Mapping[str, Choice]):
    """The choices of a part by name. A function is read once, because a study asks for hundreds of runs."""

    def __init__(self, part: str) -> None:
        self.part, self.functions = part, MAKERS[part].functions
        self._read: dict[str, tuple[Callable[..., Any], Choice]] = {}

    def __getitem__(self, option: str) -> Choice:
        if option not in self.functions:
            raise KeyError(option)
        function = self.functions[option]
        if option not in self._read or self._read[option][0] is not function:
            self._read[option] = function, described(self.part, option)
        return self._read[option][1]

    def __contains__(self, option: object) -> bool:
        return option in self.functions

    def __iter__(self) -> Iterator[str]:
        return iter(self.functions)

    def __len__(self) -> int:
        return len(self.functions)


def described(part: str, option: str) -> Choice:
    """What a function says of itself: of the catalogue, of a path, or of another package."""
    spec, function = PARTS[part], function_of(part, option)
    taken = tuple(other for other, owner in TAKEN_BY.items() if owner == part and takes(function, other))
    supplied = (*spec.supplied, *(("clients",) if "partition" in taken else ()))  # the partition knows how many
    keys = keys_in(function, f"{part} {option}", spec.prefix, supplied)
    if part != "method":
        return Choice(keys, taken)
    known = methods.REGISTRY.get(option)
    return Choice(keys, taken, _text(option, function), None if known is None else facts_of(known))


def facts_of(info: MethodInfo) -> MethodFacts:
    """What is known of a method, without its function."""
    return MethodFacts(**{field.name: getattr(info, field.name) for field in fields(MethodFacts)})


def _text(name: str, function: Callable[..., Any]) -> str:
    texts = (inspect.getdoc(inspect.getmodule(function)), f"{name}: {inspect.getdoc(function) or ''}")
    return "\n\n".join(text for text in texts if text)


def function_of(part: str, option: str) -> Callable[..., Any]:
    """The function that makes a part: of the catalogue, of a path, or of another package."""
    known = MAKERS[part].functions
    if option in known:
        return known[option]
    return maker_of(option) if part == "data" and is_path(option) else outside.load(part, option)


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function has an argument of that name."""
    return name in inspect.signature(function).parameters


def keys_in(
    function: Callable[..., Any], owner: str, prefix: str = "", without: tuple[str, ...] = ()
) -> tuple[Key, ...]:
    """The keys of any function."""
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
        if is_writable(kind):
            path = IS_PATH in getattr(annotation, "__metadata__", ())
            group = group_of(annotation)
            keys.append(Key(prefix + name, owner, kind, parameter.default, help_of(annotation), path, group))
        elif parameter.default is inspect.Parameter.empty:
            raise CloisterError(
                f"Expected arguments that a config file can give (numbers, words, true or false), found {name} of "
                f"{owner}: annotate it as one of these, or give it a default."
            )
    return tuple(keys)


def _parameters(function: Callable[..., Any], owner: str) -> Mapping[str, inspect.Parameter]:
    """The arguments of a function, or of a class, with their types as values."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise CloisterError(
            f"Expected types that exist beside the arguments of {owner}, found that {error}: import it in its module."
        ) from None
