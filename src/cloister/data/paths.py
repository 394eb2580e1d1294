"""Data that are named by a path: which words are one, and whether anything is there. Nothing is read."""

from __future__ import annotations

from pathlib import Path

from cloister.errors import CloisterError

TABLES = (".csv", ".parquet", ".npz")
"""What the names of files with tables end with."""


def is_path(option: object) -> bool:
    """Whether words on a command line name a path, and nothing else that data may be called."""
    if not isinstance(option, str) or not option or "\0" in option:
        return False
    return "/" in option or "\\" in option or option in (".", "..") or Path(option).suffix in TABLES or is_there(option)


def folders_here() -> list[str]:
    """Folders beside which somebody works, for hints; none where they cannot be listed."""
    try:
        return [path.name for path in Path().iterdir() if path.is_dir() and not path.name.startswith(".")]
    except OSError:
        return []


def is_there(path: str) -> bool:
    """Whether there is a file or a folder."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long for one, or holds what names cannot
        return False


def expect_there(path: str) -> None:
    """Refuse a path where nothing is."""
    if not is_there(path):
        raise CloisterError(f"Expected a folder or a file of data, found nothing at {path!r}: check the path.")
