"""Faults at every file operation of a run: the power fails, with all that it takes with it, or the disk is full.

One case is a method under one kind of fault. Its run is begun as often as it has file operations, and each time another
one fails. When the power fails, four disks may be found afterwards: contents and names that were not synced are there
or are not. From each the run is resumed. Then:

* every round that had left before is in the ledger that is found,
* what is resumed ends with the model, the ledger and the certificate of a run that was left alone (seeded), or with
  every release charged (secure randomness),
* what cannot be begun or resumed says so as an error of ours or of the system, and leaves nothing that is in the way.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from itertools import product
from pathlib import Path

from cloister.errors import CloisterError
from cloister.privacy import ledger_file
from cloister.runs import training
from torture.campaign import Campaign, Case, Tally
from torture.disk import Disk, Early, Late, PowerFailed, Tree, failing, lay_out
from torture.tiny_runs import NAMES, SECURE, Releases, go, reference, uncounted, watched, wrong_end

EXECUTORS = {"early": Early, "late": Late}
"""What runs beside a round (syncing the ledger, writing checkpoints) is done as early, or as late, as it may be."""
FAULTS = (("power", "late"), ("torn", "early"), ("full", "early"))
"""The power fails before an operation, or in the middle of a write; or the disk is full."""
CASES = tuple((name, kind, when) for kind, when in FAULTS for name in NAMES)


def crashes(folder: Path, seed: int) -> Case:
    """All operations of one method under one kind of fault."""

    def case(number: int, tally: Tally) -> None:
        name, kind, when = CASES[number % len(CASES)]
        sweep(name, kind, when, folder / str(number), tally)

    return case


def sweep(name: str, kind: str, when: str, folder: Path, tally: Tally, every: int = 1) -> None:
    """Let operations 1, 2, ... fail, until a run has no such operation any more."""
    reference(name, folder)
    known: set[str] = set()
    number = 1
    while crashed(name, kind, when, number, folder, tally, known):
        number += every
    tally.counts["operations"] += number - 1
    shutil.rmtree(folder, ignore_errors=True)


def crashed(name: str, kind: str, when: str, at: int, folder: Path, tally: Tally, known: set[str]) -> bool:
    """One run whose operation `at` fails, and what is resumed from what is left; False where it has no such one."""
    root, releases = folder / "disk", Releases()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    disk = Disk(root, at, kind)
    executors = ledger_file.ThreadPoolExecutor, training.ThreadPoolExecutor
    ledger_file.ThreadPoolExecutor = training.ThreadPoolExecutor = EXECUTORS[when]
    try:
        with failing(disk), watched(releases):
            go(name, root / "run")
    except PowerFailed:
        pass
    except (CloisterError, OSError):
        tally.counts["refused by a full disk"] += 1
    finally:
        ledger_file.ThreadPoolExecutor, training.ThreadPoolExecutor = executors
    if disk.count < at:
        return False
    tally.counts["faults"] += 1
    what = f"{name}, {kind}, {when}, operation {at} ({disk.log[at - 1]})"
    survivors = [(True, True)] if kind == "full" else list(product((True, False), repeat=2))
    for data, names in survivors:
        resumed(name, f"{what}, data {data}, names {names}", disk.after(data, names), releases, folder, tally, known)
    return True


def resumed(name: str, what: str, tree: Tree, before: Releases, base: Path, tally: Tally, known: set[str]) -> None:
    """Resume from what was found on a disk, and compare."""
    digest = hashlib.sha256(repr((sorted(tree.items()), sorted(before.seen.items()))).encode()).hexdigest()
    if digest in known:
        return
    known.add(digest)
    tally.counts["disks found"] += 1
    root = base / "found"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    lay_out(tree, root)
    folder, releases = root / "run", Releases(Counter(before.seen))
    begun = (folder / "description.json").exists()
    wrong = []
    if before.seen:
        wrong = (
            uncounted(name, folder, before) if begun else [f"rounds {sorted(before.seen)} left, and nothing is kept"]
        )
    try:
        with watched(releases):
            go(name, folder, resume=begun)
        wrong += wrong_end(name, folder, base, releases if name.endswith(SECURE) else before)
    except Exception as error:
        wrong.append(f"{'not resumed' if begun else 'not begun again'}: {type(error).__name__}: {error}")
    else:
        tally.counts["resumed" if begun else "begun again"] += 1
    left = sorted(path.name for path in root.iterdir() if path.name != "run") + [
        path.name for path in folder.rglob("*.new")
    ]
    wrong += [f"{left} left behind"] if left else []
    tally.wrong += [f"{what}: {one}" for one in wrong]


CAMPAIGN = Campaign(
    "crashes", "a fault at every file operation of a run", len(CASES), crashes, least=1, every=1, seconds=3600
)
