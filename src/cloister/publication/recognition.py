"""What somebody wants to have verified: published files of runs, run folders, or documents of a federation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cloister.deploy.certificates.signed import NODE, RECEIPT, SERVER
from cloister.errors import CloisterError, Corrupted
from cloister.publication.contents import read_plain
from cloister.publication.publish import PUBLISHED
from cloister.runs.certificate_file import FORMAT

_FEDERATED = (NODE, RECEIPT, SERVER)


@dataclass
class Given:
    """Folders with a model and its certificate, and documents that members of a federation signed."""

    publications: list[Path] = field(default_factory=list)
    documents: list[Path] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)
    """Named as certificates are, and none."""


def recognize(paths: Sequence[Path]) -> Given:
    """Sort what was named; of folders that hold neither, all that is inside."""
    found = Given()
    for path in paths:
        if path.is_dir():
            _folder(path, found)
        elif path.is_file() and format_of(path) in _FEDERATED:
            found.documents.append(path)
        elif path.is_file() and path.name in PUBLISHED:
            found.publications.append(path.parent)
        elif path.is_file() and path.suffix == ".json":
            found.documents.append(path)  # whatever is wrong with it is told there
        else:
            raise CloisterError(
                f"Expected published files, certificates or receipts (.json), found {path}: name those, or their "
                "folder."
            )
    return found


def _folder(path: Path, found: Given) -> None:
    own = path / "certificate.json"
    if own.is_file() and format_of(own) not in _FEDERATED:
        found.publications.append(path)
        return
    if (path / "checkpoint.safetensors").exists() and not own.exists():
        raise CloisterError(
            f"Expected a run that has ended, found that {path} has not: `cloister show {path}` tells what it has spent "
            "so far."
        )
    # A ledger alone is no publication: nodes of a federation keep theirs beside the folders of their runs.
    if not own.exists() and any((path / name).is_file() for name in PUBLISHED if name != "ledger.jsonl"):
        found.publications.append(path)
        return
    there = sorted(one for name in ("certificate.json", "receipt.json") for one in path.rglob(name))
    for one in there:
        kind = format_of(one)
        if kind == FORMAT:
            found.publications.append(one.parent)
        elif kind in _FEDERATED:
            found.documents.append(one)
        else:
            found.others.append(one)
    if not there:
        raise CloisterError(
            f"Expected published files, certificates or receipts in {path}, found none: name a folder that `cloister "
            "publish` wrote, that of a run or of a federation that has ended, or files."
        )


def format_of(path: Path) -> str | None:
    """The format that a file of JSON says it has; None where it says none."""
    try:
        found = json.loads(read_plain(path))
    except (ValueError, RecursionError, OSError, Corrupted):
        return None
    return str(found.get("format")) if isinstance(found, dict) else None
