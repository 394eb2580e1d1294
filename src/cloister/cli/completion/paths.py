"""Files, folders and runs that a word on the command line may become."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

RUNS = "runs/"
"""Where runs are kept unless somebody says where."""


def files(word: str, suffixes: Sequence[str] = ()) -> list[str]:
    """Folders, with a slash, and files whose names end like this (or all); hidden ones where the word asks for them."""
    return [
        f"{found}/" if is_folder else found
        for found, is_folder in _entries(word)
        if is_folder or not suffixes or found.endswith(tuple(suffixes))
    ]


def run_folders(word: str, unfinished: bool = False) -> list[str]:
    """Runs, those under runs/ first; other folders with a slash, because runs may be in them."""
    found = []
    begun = RUNS if not word or RUNS.startswith(word) else word
    for path, is_folder in [*_entries(begun), *(_entries(word) if begun != word else ())]:
        if not is_folder:
            continue
        if not (Path(_expanded(path)) / "description.json").is_file():
            found.append(f"{path}/")
        elif not (unfinished and (Path(_expanded(path)) / "certificate.json").exists()):
            found.append(path)
    return [path for path in dict.fromkeys(found) if path != RUNS or begun == word]


def _entries(word: str) -> Iterator[tuple[str, bool]]:
    """What there is whose path begins like this, as it would be typed; and whether it is a folder."""
    folder, name = os.path.split(word)
    try:
        with os.scandir(_expanded(folder) or ".") as there:
            entries = sorted((one.name, one.is_dir()) for one in there)
    except OSError:
        return
    start = word[: len(word) - len(name)]
    for entry, is_folder in entries:
        if not entry.isprintable():  # a line break would make two words of it
            continue
        if entry.startswith(name) and (name.startswith(".") or not entry.startswith(".")):
            yield start + entry, is_folder


def _expanded(path: str) -> str:
    return os.path.expanduser(path)
