"""Which folders may be read: one, and those below it, whatever names and links say."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cloister.errors import CloisterError


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
        root, or no file at all. (Folders in it are looked at when they are named themselves.)"""
        if not self._holds(path):
            return (
                f"Expected folders inside {self.root}, found that {path.name} is a link to another place: look at that "
                "place with `cloister studio` itself."
            )
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False) or entry.is_dir():
                    continue
                if not (entry.is_file() and self._holds(Path(entry.path))):
                    return (
                        f"Expected files inside {self.root}, found that {entry.name} in {path.name} is none, or a "
                        "link to another place: replace it by the file."
                    )
        return None

    def name(self, path: Path) -> str:
        """The inverse of `inside`."""
        return "" if path == self.root else path.relative_to(self.root).as_posix()

    def _holds(self, path: Path) -> bool:
        root = self._resolved
        try:
            found = path.resolve()
        except (OSError, RuntimeError):  # links in a circle
            return False
        return found == root or root in found.parents
