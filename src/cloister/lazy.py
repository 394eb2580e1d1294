"""Names of a package that are imported when they are first used (PEP 562): a list of keys needs no tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def on_first_use(package: str, defined: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package; `defined` says which names each of its modules defines."""

    def getter(name: str) -> Any:
        module = next((module for module, names in defined.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module}"), name)

    return getter
