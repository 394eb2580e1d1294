"""Single bytes of published files changed at random: `cloister verify` must find every one, and name the file.

python benchmarks/changed_bytes.py [--changes 1000] [--seed 0]          writes docs/verify.json

Two runs are published, signed and not signed: one that protects clients, one that protects samples of clients with
names in several scripts. Each change is a bit flipped, a byte replaced, deleted or inserted, at a random place: of a
file that is drawn at random, or of all bytes together.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

import cloister as cl
from cloister.deploy.wire.identity import PrivateKey
from cloister.publication.publish import PUBLISHED, publish
from cloister.publication.verification import verify_folder

DOCS = Path(__file__).parent.parent / "docs"
NAMES = ("Universitätsspital Zürich", "東京大学病院", "Клиника № 1", "<b>St. Mary's & Co</b>", "서울대학교병원")


def _flipped(data: bytes, at: int, draw: random.Random) -> bytes:
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def _replaced(data: bytes, at: int, draw: random.Random) -> bytes:
    return data[:at] + bytes([(data[at] + draw.randrange(1, 256)) % 256]) + data[at + 1 :]


def _deleted(data: bytes, at: int, draw: random.Random) -> bytes:
    return data[:at] + data[at + 1 :]


def _inserted(data: bytes, at: int, draw: random.Random) -> bytes:
    return data[:at] + bytes([draw.randrange(256)]) + data[at:]


CHANGES: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "flip": _flipped,
    "replace": _replaced,
    "delete": _deleted,
    "insert": _inserted,
}


@dataclass(frozen=True)
class Tried:
    """A change, and what was said about it."""

    folder: str
    file: str
    kind: str
    at: int
    found: bool
    named: bool
    """Whether a sentence begins with the name of the file."""


def tried(folder: Path, draw: random.Random) -> Tried:
    """Change one byte, verify, and put it back."""
    if draw.random() < 0.5:
        name = draw.choice(PUBLISHED)
        at = draw.randrange((folder / name).stat().st_size)
    else:  # each byte is as likely as any other
        sizes = [(one, (folder / one).stat().st_size) for one in PUBLISHED]
        (name,) = draw.choices([one for one, _ in sizes], [size for _, size in sizes])
        at = draw.randrange(dict(sizes)[name])
    kind = draw.choice(list(CHANGES))
    whole = (folder / name).read_bytes()
    changed = CHANGES[kind](whole, at, draw)
    assert changed != whole
    (folder / name).write_bytes(changed)
    try:
        wrong = verify_folder(folder).wrong
    finally:
        (folder / name).write_bytes(whole)
    return Tried(folder.name, name, kind, at, bool(wrong), any(one.startswith(f"{name}: ") for one in wrong))


def publications(place: Path) -> list[Path]:
    """Two runs, each published with and without a signature."""
    random = np.random.default_rng(0)
    owner = np.repeat(np.arange(len(NAMES)), [30, 60, 40, 25, 50])
    labels = random.integers(0, 3, len(owner))
    inputs = (random.normal(size=(len(owner), 6)) + labels[:, None]).astype("float32")
    task = cl.data.from_arrays(inputs, labels, np.array(NAMES)[owner], test=(inputs[:20], labels[:20]), classes=3)
    runs = {
        "clients": (cl.methods.dp_fedavg(clip_norm=0.5, lr=0.5, local_steps=2), {"allow_large_delta": True}),
        "samples": (cl.methods.pfl(clip_norm=1.0, lr=0.2), {"secure_rng": True}),
    }
    found = []
    for name, (method, more) in runs.items():
        settings: dict[str, Any] = {"rounds": 3, "epsilon": 4.0, "delta": 1e-3, "progress": False, **more}
        cl.run(method, task, folder=place / name, **settings)
        for key in (None, PrivateKey.from_seed(bytes(32))):
            folder = place / f"{name}-{'signed' if key else 'unsigned'}"
            publish(place / name, folder, key)
            found.append(folder)
    return found


def measured(count: int, seed: int) -> dict[str, Any]:
    """So many changes, and how many of them were found."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        folders = publications(Path(place))
        for folder in folders:
            assert verify_folder(folder).good, "unchanged, it must verify"
        results = [tried(draw.choice(folders), draw) for _ in track(range(count), "changes")]
        again = [verify_folder(folder).good for folder in folders]
    assert all(again), "put back, it must verify again"
    missed = [vars(one) for one in results if not (one.found and one.named)]
    return {
        "command": f"python benchmarks/changed_bytes.py --changes {count} --seed {seed}",
        "changes": count,
        "found": sum(one.found for one in results),
        "named": sum(one.named for one in results),
        "by_file": dict(sorted(Counter(one.file for one in results).items())),
        "by_kind": dict(sorted(Counter(one.kind for one in results).items())),
        "missed": missed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=DOCS / "verify.json")
    given = parser.parse_args()
    found = measured(given.changes, given.seed)
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{found['found']} of {found['changes']} changes found, {found['named']} with the name of the file")
    print(", ".join(f"{name} {count}" for name, count in {**found["by_kind"], **found["by_file"]}.items()))
    print(f"kept in {given.json}")
    raise SystemExit(0 if found["named"] == found["changes"] else 1)


if __name__ == "__main__":
    main()
