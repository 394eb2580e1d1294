"""Functions of other packages, named as `package.module:function`: methods, models and data that are not in here."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from cloister.errors import CloisterError, nearest, shown


def is_outside(option: object) -> bool:
    """Whether these words name a function of another package."""
    return isinstance(option, str) and ":" in option


def load(part: str, words: str) -> Callable[..., Any]:
    """The function of these words; its package may also lie in the current directory."""
    module_name, _, name = words.partition(":")
    if not all(word.isidentifier() for word in (*module_name.split("."), name)):
        raise CloisterError(
            f"Expected {part} as package.module:function, found {shown(words)}: write a module, a colon and a function."
        )
    if "" not in sys.path:
        sys.path.append("")  # last: nothing that lies here may stand in for a package that is installed
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a module of somebody else's may raise
        raise CloisterError(
            f"Expected a module that can be imported for {part} = {words}, found an error ({error}): install its "
            "package, or start in the folder in which it lies."
        ) from error
    if not hasattr(module, name):
        known = [key for key, value in vars(module).items() if callable(value)]
        close = nearest(name, known, otherwise="check the name")
        raise CloisterError(f"Expected a function {name} in {module_name}, found none for {part} = {words}: {close}.")
    function: Callable[..., Any] = getattr(module, name)
    if hasattr(function, "state_dict") and not isinstance(function, type):
        raise CloisterError(
            f"Expected a function or a class for {part} = {words}, found a {type(function).__name__} that is made "
            f"already: name what makes it, so that its initial weights follow from the run's seed."
        )
    try:
        inspect.signature(function)
    except (TypeError, ValueError):
        raise CloisterError(
            f"Expected a function for {part} = {words}, found {shown(function)}: name one that makes the {part}."
        ) from None
    return function


def expect_made(part: str, words: str, made: Any, kind: type) -> None:
    """Refuse what is no such part."""
    if not isinstance(made, kind):
        article = f"a {kind.__name__} of {kind.__module__.split('.')[0]}"
        raise CloisterError(f"Expected {article} as {part}, found that {words} returned {shown(made)}: return one.")
