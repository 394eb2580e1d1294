"""How a model is made, in words from which it can be made again: a name and plain arguments.

A name is one of the catalogue, or `package.module:function`. A module that somebody built in Python has neither.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from cloister.models import CATALOGUE
from cloister.runs import outside


@dataclass(frozen=True)
class ModelSource:
    """A model by name, with all its arguments: calling it makes a new one."""

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, **supplied: Any) -> nn.Module:
        """A new module, not yet trained; it is also given what is supplied, as far as it takes that."""
        known = CATALOGUE.get(self.name)
        function = outside.load("model", self.name) if known is None else known
        given = {name: tuple(one) if name == "shape" else one for name, one in self.arguments.items()}  # JSON has lists
        taken = inspect.signature(function).parameters
        made = function(**given, **{name: one for name, one in supplied.items() if name in taken})
        outside.expect_made("model", self.name, made, nn.Module)
        return made

    @property
    def is_outside(self) -> bool:
        """Whether making it runs code of another package."""
        return self.name not in CATALOGUE

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"name": self.name, "arguments": dict(self.arguments)}


def source_of(model: nn.Module | Callable[[], nn.Module]) -> ModelSource | None:
    """By which name and arguments a model can be made again; None where it is somebody's own object.

    >>> from cloister.models import mlp
    >>> source_of(functools.partial(mlp, (8,), 3, hidden=4))
    ModelSource(name='mlp', arguments={'shape': (8,), 'classes': 3, 'hidden': 4})
    """
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, nn.Module):
        return None
    function, args, keywords = model, (), {}
    if isinstance(model, functools.partial):
        function, args, keywords = model.func, model.args, model.keywords
    name = _name_of(function)
    try:
        arguments = dict(inspect.signature(function).bind(*args, **keywords).arguments)
    except (TypeError, ValueError):  # no signature is known
        return None
    return ModelSource(name, arguments) if name and all(map(_is_plain, arguments.values())) else None


def _name_of(function: Any) -> str | None:
    """The catalogue's name for a function, or that by which anybody can import it."""
    for name, known in CATALOGUE.items():
        if function is known:
            return name
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is function else None


def _is_plain(value: Any) -> bool:
    """Whether JSON can say it."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
