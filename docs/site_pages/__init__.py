"""Pages of the documentation that are generated when the site is built (`docs/hook.py`), and checked in nowhere.

`generated(root)` has all of them by path, as Markdown. It needs no MkDocs: tests run the code blocks of these pages.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from site_pages import (
    api_pages,
    command_pages,
    data_pages,
    documents,
    method_pages,
    model_pages,
    sources,
)

KINDS: dict[str, ModuleType] = {
    "methods": method_pages,
    "data": data_pages,
    "models": model_pages,
    "documents": documents,
    "sources": sources,
    "commands": command_pages,
    "api": api_pages,
}
"""Modules with a function `pages(root)`."""


def generated(root: Path) -> dict[str, str]:
    """By path in the site, the text of every generated page."""
    return {path: text for kind in KINDS.values() for path, text in kind.pages(root).items()}


def pictures(root: Path) -> dict[str, Path]:
    """By path in the site, the pictures that generated pages show."""
    return {f"assets/{name}": root / name for name in documents.pictures(root)}
