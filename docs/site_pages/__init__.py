"""Pages of the documentation that are generated when the site is built (`docs/hook.py`), and checked in nowhere.

`generated(root)` has all of them by path, as Markdown. It needs no MkDocs: tests run the code blocks of these pages.
"""

from __future__ import annotations

from pathlib import Path

from site_pages import (
    api_pages,
    command_pages,
    data_pages,
    documents,
    method_pages,
    model_pages,
    sources,
)

_KINDS = (method_pages, data_pages, model_pages, documents, sources, command_pages, api_pages)


def generated(root: Path) -> dict[str, str]:
    """By path in the site, the text of every generated page."""
    return {path: text for kind in _KINDS for path, text in kind.pages(root).items()}


def pictures(root: Path) -> dict[str, Path]:
    """By path in the site, the pictures that generated pages show."""
    return {f"assets/{name}": root / name for name in documents.pictures(root)}
