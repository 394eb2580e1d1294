"""The order of the site: hand-written pages by their folders and front matter, generated ones where they belong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from site_pages.method_pages import grouped

Nav = list[dict[str, Any]]
_FRONT = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
FOLDERS = {"concepts": "Concepts", "howto": "How-to", "coming-from": "Coming from"}
"""Folders of hand-written pages that come after the first page and start/; others follow by their names."""
EVIDENCE = ("speed", "audit", "mutants", "torture", "rounded-noise", "theory", "papers")
REFERENCE = ("commands", "keys", "federation", "examples", "experiments", "experiments-papers")
FILES = ("experiment-files", "best-files", "paper-files")


def nav(folder: Path, generated: Mapping[str, str]) -> Nav:
    """All pages: those under `folder`, and generated ones by path."""
    written = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.md")}
    first = [path for path in written if "/" not in path or path.startswith("start/")]
    rest = _ordered((path for path in first if path != "index.md"), written)
    own = sorted({path.split("/")[0] for path in written if path not in first}, key=_place)
    start = {"Start": ["index.md", *({_title(path, written[path]): path} for path in rest)]}
    return [start, *(_section(one, written) for one in own), *_generated(generated)]


def _place(folder: str) -> tuple[int, str]:
    known = list(FOLDERS)
    return (known.index(folder) if folder in known else len(known)), folder


def _section(folder: str, written: Mapping[str, str]) -> dict[str, Any]:
    """A folder: its index page first."""
    inside = [path for path in written if path.startswith(f"{folder}/")]
    index = f"{folder}/index.md"
    rest = [{_title(path, written[path]): path} for path in _ordered((one for one in inside if one != index), written)]
    name = FOLDERS.get(folder, folder.replace("-", " ").capitalize())
    return {name: [*([index] if index in inside else []), *rest]}


def _ordered(paths: Iterable[str], written: Mapping[str, str]) -> list[str]:
    return sorted(paths, key=lambda path: (float(_front(written[path]).get("order", 1000)), path))


def _front(text: str) -> dict[str, Any]:
    found = _FRONT.match(text)
    return (yaml.safe_load(found[1]) or {}) if found else {}


def _title(path: str, text: str) -> str:
    """Of its front matter, or its first heading, or its name."""
    heading = re.search(r"^# (.+?)(?: *\{.*\})?$", text, re.MULTILINE)
    given = _front(text).get("title")
    return str(given or (heading[1] if heading else Path(path).stem)).replace("`", "")


def _generated(pages: Mapping[str, str]) -> Nav:
    def titled(*paths: str) -> Nav:
        return [{_title(path, pages[path]): path} for path in paths]

    def under(folder: str, *first: str) -> Nav:
        rest = [path for path in pages if path.startswith(f"{folder}/") and path not in first]
        return titled(*(path for path in rest if "/" not in path.removeprefix(f"{folder}/")))

    methods = ("methods/index.md", "methods/user-level.md", "methods/sample-level.md")
    results = ("results/index.md", "results/best.md", "results/what-holds-up.md")
    api = ("reference/api/index.md", "reference/api/cloister.md")
    return [
        {
            "Methods": [
                methods[0],
                *({name: titled(*paths)} for name, paths in grouped().items()),
                {"Side by side": titled(*methods[1:])},
            ]
        },
        {
            "Data and models": [
                {"Data sets": ["data/index.md", *under("data", "data/index.md")]},
                {"Models": ["models/index.md", *under("models", "models/index.md")]},
            ]
        },
        {
            "Results": [
                results[0],
                *titled(*results[1:]),
                *under("results/comparisons"),
                *titled(*(f"evidence/{name}.md" for name in EVIDENCE)),
                {"The papers' tables": under("results/papers")},
            ]
        },
        {
            "Reference": [
                *titled(*(f"reference/{name}.md" for name in REFERENCE)),
                {"Files": titled(*(f"reference/{name}.md" for name in FILES))},
                {"API": [api[0], *titled(api[1]), *under("reference/api", *api)]},
            ]
        },
        {"Project": under("project")},
    ]
