"""The catalogue of methods: one paper per file, each a short composition of parts.

Every module of this folder is imported, and what it registers is in the catalogue (`registry.py`).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from cloister.core import Method
from cloister.errors import nearest
from cloister.methods.registry import REGISTRY, MethodInfo, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

CATALOGUE: dict[str, Callable[..., Method]] = {
    name: info.function for name, info in sorted(REGISTRY.items(), key=lambda item: item[1].year)
}
"""By name, the oldest first."""

globals().update(CATALOGUE)  # some have the name of their module, which the import put here

__all__ = ["CATALOGUE", "REGISTRY", "MethodInfo", "register"]


def __getattr__(name: str) -> Callable[..., Method]:
    raise AttributeError(f"module 'cloister.methods' has no method {name!r}: {nearest(name, CATALOGUE)}.")


def __dir__() -> list[str]:
    return [*CATALOGUE, *__all__]
