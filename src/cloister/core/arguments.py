"""Arguments that several functions share: written once, as a dataclass, and given one by one as keywords.

    @flat_arguments
    def dp_fedavg(clip_norm: float, training: LocalSGD, noise_multiplier: float | None = None) -> Method: ...

    dp_fedavg(1.0, lr=0.1, local_steps=5)

The signature that `help`, the config file and the command line see has the fields of `LocalSGD` in place of `training`.
What an argument means stands beside it: `lr: Annotated[float, "local learning rate"] = 0.1`, and so does, where there
are many, the heading under which help lists it: `seed: Annotated[int, "seed of a simulation", Group("computing")] = 0`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Group:
    """The heading under which help lists an argument."""

    name: str


def flat_arguments(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, whose parameters that are dataclasses are given as single keywords (or whole, by their name)."""
    whole = inspect.signature(function)
    hints = typing.get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if name in whole.parameters and _is_group(hint)}
    flat: list[inspect.Parameter] = []
    for name, parameter in whole.parameters.items():
        flat += _fields(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
    flat.sort(key=lambda parameter: parameter.kind)  # keywords last, each in its order

    signature = whole.replace(parameters=flat)

    @functools.wraps(function)
    def wrapped(*args: Any, **keywords: Any) -> Result:
        given = {name: keywords.pop(name) for name in groups if name in keywords}
        try:
            given |= signature.bind(*args, **keywords).arguments
        except TypeError as error:
            raise TypeError(f"{function.__name__}() {error}") from None  # as Python says it
        for name in groups.keys() - given.keys():
            names = [field.name for field in dataclasses.fields(groups[name])]
            given[name] = groups[name](**{key: given.pop(key) for key in names if key in given})
        return function(**given)

    vars(wrapped)["__signature__"] = signature  # where `inspect.signature`, and with it `help`, looks first
    return wrapped


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and getattr(hint, "given_as_keywords", False)


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(
            field.name,
            keyword,
            default=keyword_default(field),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
        if field.init
    ]


def keyword_default(field: dataclasses.Field[Any]) -> Any:
    """A field's default as a signature has it."""
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


def help_of(annotation: Any) -> str:
    """What an argument means, as it stands beside it; nothing where nothing does."""
    notes = getattr(annotation, "__metadata__", ())
    return next((note for note in notes if isinstance(note, str)), "")


def group_of(annotation: Any) -> str:
    """The heading under which help lists an argument; nothing where none stands beside it."""
    notes = getattr(annotation, "__metadata__", ())
    return next((note.name for note in notes if isinstance(note, Group)), "")
