"""A value with tensors in one file, which is replaced in one step, whole or not at all, and for its owner alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from cloister.deploy.wire.bodies import Body, unpack
from cloister.deploy.wire.canonical import digest_of
from cloister.deploy.wire.refused import Refused
from cloister.errors import Corrupted
from cloister.runs.files import read_bytes, sync_folder

_FORMAT = b"cloister stored 1\n"


def write_stored(path: Path, content: Mapping[str, Any], tensors: Mapping[str, Tensor], durable: bool = True) -> None:
    """Replace the file; `durable`: it is on the disk when this returns, and does not only survive this process."""
    header, body = json.dumps(content, sort_keys=True).encode(), Body.borrowed(tensors)
    digest = bytes.fromhex(digest_of(header + body.sha256.encode()))
    write_bytes(path, [_FORMAT, len(header).to_bytes(8, "big"), header, *body.pieces, digest], durable)


def read_stored(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file holds, verified to be what was written."""
    data = read_bytes(path)
    start = len(_FORMAT) + 8
    size = int.from_bytes(data[len(_FORMAT) : start], "big")
    header, body, digest = data[start : start + size], data[start + size : -32], data[-32:].hex()
    if data[: len(_FORMAT)] != _FORMAT or digest != digest_of(header + digest_of(body).encode()):
        raise Corrupted(f"Expected {path} as it was written, found it damaged: restore it from a backup.")
    try:
        return json.loads(header), unpack(body)
    except (ValueError, Refused) as error:
        raise Corrupted(f"Expected {path} as it was written, found {error}: restore it from a backup.") from error


def read_about(path: Path) -> dict[str, Any]:
    """What the file holds beside its tensors, which are neither read nor verified."""
    with path.open("rb") as file:
        start = file.read(len(_FORMAT) + 8)
        header = file.read(int.from_bytes(start[len(_FORMAT) :], "big")) if start.startswith(_FORMAT) else b""
    try:
        found = json.loads(header)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Corrupted(f"Expected {path} as it was written, found it damaged: restore it from a backup.")
    return found


def write_bytes(path: Path, data: bytes | Sequence[bytes | memoryview], durable: bool = True) -> None:
    """Replace a file by bytes, or by several one after the other; as `write_stored`."""
    draft = path.with_name(f".{path.name}.new")  # hidden: whoever lists the folder passes over it
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.writelines([data] if isinstance(data, bytes) else data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(draft, path)
    if durable:
        sync_folder(path.parent)


def make_private(folder: Path) -> Path:
    """The folder, made if it is not there, for its owner alone."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(folder, 0o700)
    return folder
