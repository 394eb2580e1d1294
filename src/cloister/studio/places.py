"""Which folders may be read: one, and those below it, whatever names and links say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cloister.errors import CloisterError

DAMAGED = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError)
"""What reading raises where nobody foresaw what is in a file: folders may come from strangers."""
MOST_BYTES = 256 * 2**20
"""Of a file that is read whole, which all are but those of tensors. Some thousand bytes for each round are usual."""


class NotThere(CloisterError):
    """Nothing that may be shown has this name."""


@dataclass(frozen=True)
class Places:
    """Everything below one folder."""

    root: Path

    @cached_property
    def _resolved(self) -> Path:
        return self.root.resolve()

    def inside(self, name: str) -> Path:
        """The folder that a page names, relative to the root; refused where it, or a file in it, lies elsewhere."""
        parts = name.split("/") if name else []
        plain = all(part and not part.startswith(".") and part.isprintable() and "\\" not in part for part in parts)
        path = self.root.joinpath(*parts) if plain else self.root
        if not plain or not path.is_dir():
            raise NotThere(f"Expected a folder in {self.root}, found {name!r}: go back to the list.")
        outside = self.outside(path)
        if outside is not None:
            raise NotThere(outside)
        return path

    def outside(self, path: Path) -> str | None:
        """Why a folder is not read: it, or something in it that is read as a file, is a link that leads out of the
        root, no file at all, or too large. (Folders in it are looked at when they are named themselves.)"""
        if not _is_text(path.name):
            return "Expected a name in UTF-8, found another: rename the folder."
        if not self._holds(path):
            return (
                f"Expected folders inside {self.root}, found that {path.name} is a link to another place: look at that "
                "place with `cloister studio` itself."
            )
        try:
            with os.scandir(path) as entries:
                return next((why for entry in entries if (why := self._refused(entry, path)) is not None), None)
        except OSError as error:
            return f"Expected a folder that can be read, found {error.strerror} for {path.name}: check who may read it."

    def _refused(self, entry: os.DirEntry[str], path: Path) -> str | None:
        if entry.is_dir():
            return None
        if not entry.is_file(follow_symlinks=False) and not (entry.is_file() and self._holds(Path(entry.path))):
            return (
                f"Expected files inside {self.root}, found that {shown_name(entry.name)} in {path.name} is none, or a "
                "link to another place: replace it by the file."
            )
        if not entry.name.endswith(".safetensors") and entry.stat().st_size > MOST_BYTES:
            return (
                f"Expected files of at most {MOST_BYTES:,} bytes, found that {shown_name(entry.name)} in {path.name} "
                f"has {entry.stat().st_size:,}: look at this run with `cloister show`."
            )
        return None

    def name(self, path: Path) -> str:
        """The inverse of `inside`."""
        return "" if path == self.root else path.relative_to(self.root).as_posix()

    def shown(self, path: Path) -> str:
        """The name as text, also where it is none."""
        return shown_name(self.name(path))

    def _holds(self, path: Path) -> bool:
        root = self._resolved
        try:
            found = path.resolve()
        except (OSError, RuntimeError):  # links in a circle
            return False
        return found == root or root in found.parents


def _is_text(name: str) -> bool:
    return shown_name(name) == name


def shown_name(name: str) -> str:
    """A name in which bytes that are no UTF-8 are question marks."""
    return name.encode(errors="replace").decode()
