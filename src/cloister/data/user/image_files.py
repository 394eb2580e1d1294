"""Which image files lie in a folder, in an order that is the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cloister.data.user.decoding import SUFFIXES
from cloister.errors import CloisterError, expect, nearest

LAYOUT = "client/class/image.png"
_LEFT_BY_SYSTEMS = frozenset(("Thumbs.db", "desktop.ini", "__MACOSX", "@eaDir"))


class Found(NamedTuple):
    """The images of clients: who there is, which classes have folders, and every file with its client and class."""

    clients: list[str]
    classes: list[str]
    files: list[Path]
    owners: list[str]
    labels: list[str]


def images_of_clients(root: Path, classes: Sequence[str] | None) -> Found:
    """The images in folders client/class/; other classes than those declared are refused."""
    found = Found([], [], [], [], [])
    for client in _folders(root):
        found.clients.append(client.name)
        for folder in _folders(client):
            name = folder.name
            if classes is not None and name not in classes:
                close = nearest(name, classes, "declare it, or remove the folder")
                raise CloisterError(f"Expected a folder for one of the declared classes, found {folder}: {close}.")
            found.classes.append(name)
            files = list(_images(folder))
            found.files.extend(files)
            found.owners.extend([client.name] * len(files))
            found.labels.extend([name] * len(files))
    if not found.files:
        raise CloisterError(f"Expected images as {LAYOUT} in {root}, found none: make a folder for every client.")
    _expect_apart(found.files)
    return found._replace(classes=sorted(set(found.classes)))


def images_below(root: Path) -> list[Path]:
    """All images of a folder, however deep they lie."""
    files = []
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not _is_hidden(name))
        files += [Path(place) / name for name in names if _is_image(name) and not _is_hidden(name)]
    expect(bool(files), f"images in {root}", "none", f"their names end with {', '.join(sorted(SUFFIXES))}")
    return sorted(files, key=lambda file: file.relative_to(root).parts)


def _folders(place: Path) -> list[Path]:
    """The folders in a folder. An image beside them has no class; other files are notes, and nobody minds them."""
    found = []
    for entry in _entries(place):
        if os.path.isdir(entry):
            found.append(Path(entry))
        elif _is_image(entry.name):
            raise CloisterError(f"Expected images as {LAYOUT}, found {entry.path}: move it into a class's folder.")
    return found


def _images(folder: Path) -> Iterator[Path]:
    """The files of a class, all of which have to be images: what is left out silently would not be missed."""
    for entry in _entries(folder):
        if entry.is_dir():
            raise CloisterError(
                f"Expected images as {LAYOUT}, found the folder {entry.path} below a class: move its images up."
            )
        if not _is_image(entry.name):
            raise CloisterError(f"Expected images alone in {folder}, found {entry.name}: move it elsewhere.")
        yield Path(entry.path)


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as found:
            return sorted((entry for entry in found if not _is_hidden(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise CloisterError(f"Expected to read the folder {place}, found {error.strerror}: check it.") from error


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in _LEFT_BY_SYSTEMS


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _expect_apart(files: Sequence[Path]) -> None:
    """A link must not make one image two samples: whoever is protected would count twice."""
    folders = {file.parent for file in files}
    linked = {folder for folder in folders if os.path.realpath(folder) != os.path.abspath(folder)}
    if not linked and not any(file.is_symlink() for file in files):
        return
    known: dict[str, Path] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in known:
            raise CloisterError(f"Expected every image once, found {known[real]} and {file}, one a link: remove it.")
        known[real] = file
