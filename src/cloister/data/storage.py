"""The data folder: where it is, what of the registry lies in it, and how that is shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloister.data.registry import ENTRIES, Entry, File, Member
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from rich.table import Table


def data_folder() -> Path:
    """Where data sets lie: $CLOISTER_DATA, or ~/.cache/cloister."""
    named = os.environ.get("CLOISTER_DATA") or "~/.cache/cloister"
    try:
        folder = Path(named).expanduser()
    except RuntimeError:
        raise CloisterError(
            f"Expected CLOISTER_DATA to name a folder, found {named!r}: there is no such user."
        ) from None
    if folder.exists() and not folder.is_dir():
        raise CloisterError(f"Expected CLOISTER_DATA to name a folder, found that {named!r} is a file: name another.")
    return folder


def present(entry: Entry, root: Path) -> bool | Literal["partly"]:
    """Whether the files of a data set are there. They are not read; `download.get` checks them."""
    made = [next(root.glob(pattern), None) is not None for pattern in entry.by_hand]
    sent = [_place(piece, root) is not None for file in entry.files for piece in file.pieces]
    ways = [way for way in (made, sent) if way]
    if not ways or any(all(way) for way in ways):
        return True
    return "partly" if any(map(any, ways)) else False


def size_on_disk(entry: Entry, root: Path) -> int:
    """Bytes that its files take in the data folder."""
    places = {_place(piece, root) for file in entry.files for piece in file.pieces}
    places |= {place for pattern in entry.by_hand for place in root.glob(pattern)}
    return sum(place.stat().st_size for place in places if place)


def list_table(root: Path) -> Table:
    """All data sets, and which of them are in the data folder."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("name", "what", "samples", "here", "license"):
        table.add_column(name, overflow="fold", no_wrap=name in ("name", "here"))
    for one in ENTRIES.values():
        table.add_row(one.name, one.what, one.samples, _here(one, root), one.license)
    return table


def describe(entry: Entry, root: Path) -> str:
    """One data set, in full: what `cloister data list NAME` says."""
    lines = [
        entry.title,
        "",
        f"{'name:':<10} {entry.name}",
        f"{'what:':<10} {entry.what}",
        f"{'samples:':<10} {entry.samples}",
        f"{'license:':<10} {entry.license}",
        f"{'cite:':<10} {entry.citation}",
        f"{'here:':<10} {_here(entry, root)} ({root})",
    ]
    for file in entry.files:
        check = f"md5 {file.md5}" if file.md5 else f"sha256 {file.sha256}" if file.sha256 else "no checksum is known"
        size = "" if file.bytes is None else f"{readable(file.bytes)}, "
        lines += ["", file.url, f"  {size}{check}"]
        lines += [f"  {'archive of ' if file.unpack else ''}{_places(file)}"]
    if entry.note:
        lines += ["", entry.note]
    return "\n".join(lines)


def readable(size: float) -> str:
    """A number of bytes as people say it.

    >>> readable(9912422), readable(315)
    ('9.9 MB', '315 B')
    """
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _place(piece: Member, root: Path) -> Path | None:
    """Where a piece is; its unpacked twin, which torchvision leaves behind, is as good."""
    place = root / piece.path
    twins = (place, place.with_suffix("")) if place.suffix == ".gz" else (place,)
    return next((twin for twin in twins if twin.is_file()), None)


def _here(entry: Entry, root: Path) -> str:
    found = present(entry, root)
    if not found:
        return "no"
    size = size_on_disk(entry, root)
    return ("yes" if found is True else "partly") + (f", {readable(size)}" if size else "")


def _places(file: File) -> str:
    places = [piece.path for piece in file.pieces]
    return ", ".join(places) if len(places) <= 6 else f"{len(places)} files such as {places[0]}"
