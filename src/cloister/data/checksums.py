"""Whether a file is what was published."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from cloister.data.registry import Member

_CHUNK = 1 << 18


def checksum(piece: Member) -> str | None:
    return f"sha256 {piece.sha256}" if piece.sha256 else f"md5 {piece.md5}" if piece.md5 else None


def wrong_checksum(path: Path, piece: Member, compressed: bool = False) -> str | None:
    """The checksum a file has instead of the one it should have; None if it is right, or none is known."""
    expected = checksum(piece)
    if expected is None:
        return None
    kind, _, digest = expected.partition(" ")
    hashed = hashlib.new(kind, usedforsecurity=False)
    try:
        with gzip.open(path) if compressed else path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                hashed.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return "something that is not gzip"
    return None if hashed.hexdigest() == digest else hashed.hexdigest()
