"""What of a file is on the disk: as far as somebody waited for it."""

from __future__ import annotations

import os
from pathlib import Path


class Synced:
    """Remembers, for every file, how long it was when it was last synced."""

    def __init__(self, monkeypatch) -> None:
        self._sizes: dict[int, int] = {}
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._remember)

    def _remember(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._fsync(descriptor)
        self._sizes[found.st_ino] = found.st_size

    def whole(self, path: Path) -> bool:
        """Whether all that the file holds was synced."""
        found = path.stat()
        return self._sizes.get(found.st_ino) == found.st_size > 0

    def folder(self, path: Path) -> bool:
        """Whether the names in a folder were synced."""
        return path.stat().st_ino in self._sizes
