"""The API reference: a page for the names of `cloister`, and one for each of its packages; mkdocstrings fills them."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

import cloister
from site_pages.markdown import table

PACKAGES = {
    "data": "data",
    "models": "models",
    "client": "client",
    "transforms": "transforms",
    "mechanisms": "mechanisms",
    "server": "server",
    "methods": "methods",
    "theory": "theory",
    "trackers": "runs.trackers",
    "auditing": "auditing",
    "core": "core",
}
"""By the name of the page, where the package is."""


def pages(root: Path) -> dict[str, str]:
    """All of them."""
    found = {f"reference/api/{page}.md": _package(page, path) for page, path in PACKAGES.items()}
    return {"reference/api/index.md": _index(), "reference/api/cloister.md": _top(), **found}


FIRST = (
    *("run", "Run", "load", "plan", "Plan", "compare", "Comparison", "tune", "Tuned", "reproduce", "Reproduction"),
    *("report", "audit", "Audit"),
)
"""What one comes to need first; the others follow by their names."""


def _top_names() -> list[str]:
    names = [name for name in cloister.__all__ if not inspect.ismodule(getattr(cloister, name))]
    return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


def _index() -> str:
    rows = [(f"[`cl.{name}`][cloister.{name}]", _summary(getattr(cloister, name))) for name in _top_names()]
    packages = [
        (f"[`cloister.{path}`]({page}.md)", _summary(importlib.import_module(f"cloister.{path}")))
        for page, path in PACKAGES.items()
    ]
    return "\n".join(
        [
            "# API\n",
            "```python\nimport cloister as cl\n```\n",
            "What is public is in `cloister.__all__` and in the `__all__` of the packages below.\n",
            table(("name", ""), rows),
            "## Packages\n",
            table(("package", ""), packages),
        ]
    )


def _top() -> str:
    names = _top_names()
    functions = [name for name in names if inspect.isfunction(getattr(cloister, name))]
    classes = [name for name in names if name not in functions]
    parts = ["# cloister\n", "## Functions\n", *(_entry(f"cloister.{name}") for name in functions)]
    return "\n".join([*parts, "## Classes\n", *(_entry(f"cloister.{name}") for name in classes)])


def _package(page: str, path: str) -> str:
    """What the package defines and the first page does not have already."""
    module = importlib.import_module(f"cloister.{path}")
    parts = [f"# cloister.{path}\n", f"{inspect.getdoc(module)}\n"]
    seen = {_canonical(getattr(cloister, name)) for name in _top_names()}
    if page == "methods":
        from cloister.methods import CATALOGUE

        parts.append("Each has a [page of its own](../../methods/index.md): its idea, its guarantee and its curve.\n")
        parts += [_entry(_canonical(function), full_path=False) for function in CATALOGUE.values()]
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value):
            parts += _module(value, seen)
        elif _is_documented(value) and _canonical(value) not in seen:
            seen.add(_canonical(value))
            parts.append(_entry(f"cloister.{path}.{name}"))
    return "\n".join(parts)


def _module(module: ModuleType, seen: set[str]) -> list[str]:
    """A module that a package lists: its own functions and classes."""
    own = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and _is_documented(value) and value.__module__ == module.__name__
    ]
    fresh = [_canonical(value) for value in own if _canonical(value) not in seen]
    seen.update(fresh)
    return [f"## {module.__name__}\n", f"{inspect.getdoc(module) or ''}\n", *map(_entry, fresh)]


def _is_documented(value: Any) -> bool:
    return (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("cloister")


def _canonical(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _entry(name: str, full_path: bool = True) -> str:
    return f"::: {name}\n    options:\n      show_root_full_path: {str(full_path).lower()}\n"


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
