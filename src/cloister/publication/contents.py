"""The files of a publication as bytes: read once, nothing followed, nothing executed, nothing too large taken in."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted

_MOST = 2**30
"""Bytes of the largest file that is read into memory. Models are not: they are hashed piece by piece."""
_MOST_HEADER = 16 * 2**20
_PIECE = 2**20


def names_in(folder: Path) -> set[str]:
    """What is in a folder, whatever it is."""
    return {entry.name for entry in os.scandir(folder)}


def read_plain(path: Path) -> bytes:
    """What a plain file holds; refused where it is a link, a folder, a pipe, or too large."""
    if _size(path) > _MOST:
        raise Corrupted(f"Expected a file of at most {_MOST:,} bytes, found {_size(path):,}: that is something else.")
    return path.read_bytes()


def hash_of_file(path: Path) -> str:
    """SHA-256 of a plain file, however large."""
    _size(path)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def shapes_in(path: Path) -> dict[str, list[int]]:
    """The tensors that a safetensors file holds, by its header alone; refused where header and size do not fit."""
    damaged = Corrupted("Expected a safetensors file, found a damaged one: ask for it again.")
    size = _size(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MOST_HEADER):
            raise damaged
        header = file.read(length)
    try:
        about: Any = json.loads(header)
        about.pop("__metadata__", None)
        found = {str(name): list(one["shape"]) for name, one in about.items()}
        ends = [one["data_offsets"][1] for one in about.values()]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise damaged from None
    if max(ends, default=0) != size - 8 - length:
        raise damaged
    return found


def _size(path: Path) -> int:
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        raise Corrupted("Expected this file, found none: ask for all files again.") from None
    if not stat.S_ISREG(about.st_mode):
        raise Corrupted("Expected a plain file, found a link, a folder or a device: do not follow it.")
    return about.st_size
