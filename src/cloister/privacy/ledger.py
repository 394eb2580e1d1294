"""The ledger: append-only facts about what was released, paid for before it is computed.

Guarantee: when `charge` returns, the line that pays for the release is written and the unit's composed epsilon is
within its budget; when it raises, nothing was written. When `settle` returns, every line is on the disk (fsynced).
A round charges before it computes anything, and settles before anything computed leaves it, so the disk has the
round's time to work. A process killed, or a machine without power, at any instant leaves a ledger that shows at
least what was released, never less.

| what happens                                | what the ledger does                                             |
|---------------------------------------------|------------------------------------------------------------------|
| the budget would be exceeded                | raises `BudgetExceeded`; the file does not change                |
| the event has no proven price               | raises `CannotPrice`; the file does not change                   |
| a line cannot be written (a full disk)      | what was written of it is taken back; `charge` raises            |
| the disk fails under a line that is written | `settle` raises, before anything left; so does every later call  |
| killed while a line was being written       | the torn line has no newline; it paid for nothing and is dropped |
| killed between `charge` and `settle`        | the line stays and pays for a round that released nothing        |
| the power fails between the two             | the line may be lost, and with it the round that it paid for     |
| a byte was changed, a line removed          | raises `Corrupted` when opened: every line seals the ones before |
| the last lines were cut off                 | raises `Corrupted` on resume: the checkpoint remembers the seal  |
| a seeded round is computed a second time    | if the same bits come out, the line that is there pays for it    |
| a round with secure noise is repeated       | it is a new release and pays again                               |

The file is JSON lines. The first is a header (format, what the run is, budgets); each further line is one
release to one unit. `seal` is SHA-256 over the previous line's seal and this line's content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cloister.errors import BudgetExceeded, CloisterError, Corrupted, expect_delta, expect_positive
from cloister.privacy.accounting import Accountant, PrivacyLoss
from cloister.privacy.events import Event, from_json, to_json

_FORMAT = "cloister ledger 1"


@dataclass(frozen=True)
class Budget:
    """The most that a unit may lose: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        expect_positive("epsilon", self.epsilon, "a budget of nothing allows nothing")
        expect_delta(self.delta)


@dataclass(frozen=True)
class Entry:
    """One release: to which unit, in which round, of what, under which noise."""

    unit: str
    round: int
    what: str
    event: Event


class Ledger:
    """What each unit has spent. Make one with `create`, or `open` an existing file."""

    def __init__(self, path: Path | None, subject: str, budgets: Mapping[str, Budget]) -> None:
        self.path = path
        self.subject = subject
        self.budgets = dict(budgets)
        self.entries: list[Entry] = []
        self.seals: list[str] = []
        self._paid: dict[tuple[str, int, str], Entry] = {}
        self._losses: dict[str, PrivacyLoss] = {}
        self._descriptor: int | None = None
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._syncing: Future[None] | None = None
        self._failure: BaseException | None = None

    @classmethod
    def create(cls, path: Path | None, subject: str, budgets: Mapping[str, Budget]) -> Self:
        """A new ledger for the run whose description has the hash `subject`; in memory where path is None."""
        ledger = cls(path, subject, budgets)
        if path is not None:
            if path.exists():
                raise CloisterError(f"Expected no ledger at {path}, found one: choose another folder or resume it.")
            ledger._descriptor = _open_locked(path, os.O_CREAT | os.O_EXCL)
        ledger._append({"format": _FORMAT, "subject": subject, "budgets": {u: asdict(b) for u, b in budgets.items()}})
        ledger.settle()
        return ledger

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Self:
        """Read and verify a ledger; `writable` also locks it and drops a torn last line."""
        if not path.is_file():
            raise CloisterError(f"Expected a ledger at {path}, found none: name the folder of a run.")
        descriptor = _open_locked(path) if writable else None
        try:
            ledger = cls._read(path)
            if descriptor is not None:
                _write_again(path, descriptor)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        ledger._descriptor = descriptor
        return ledger

    @classmethod
    def _read(cls, path: Path) -> Self:
        whole = path.read_bytes().rpartition(b"\n")[0]
        seals, contents = _verify(path, whole.split(b"\n") if whole else [])
        if not contents or contents[0].get("format") != _FORMAT:
            raise Corrupted(f"Expected a ledger of the format {_FORMAT!r} at {path}: restore it from a backup.")
        header = contents[0]
        ledger = cls(path, header["subject"], {u: Budget(**b) for u, b in header["budgets"].items()})
        ledger.seals = seals
        for content in contents[1:]:
            entry = Entry(content["unit"], content["round"], content["what"], from_json(content["event"]))
            ledger._remember(entry)
            ledger._losses.setdefault(entry.unit, PrivacyLoss()).add(entry.event)
        return ledger

    def charge(self, unit: str, event: Event, *, round: int, what: str = "update", repeatable: bool) -> None:
        """Pay for one release before it is computed. What is computed may leave the round once `settle` returns.

        `repeatable` says that computing it again gives the same bits (seeded randomness), so that a round
        which was paid for before a crash need not be paid for twice.
        """
        self.settle()  # a line is only ever written below lines that are on the disk
        entry = Entry(unit, round, what, event)
        if repeatable:
            paid = self._paid.get((unit, round, what))
            if paid and paid != entry:
                raise Corrupted(
                    f"Expected round {round} to repeat the release it was charged for ({paid.event}), found "
                    f"{event}: the run's configuration changed, so start a new run."
                )
            if paid:
                return
        after = self._losses[unit].copy() if unit in self._losses else PrivacyLoss()
        after.add(event)
        budget = self.budgets.get(unit)
        if budget is not None:
            cost = after.epsilon(budget.delta)
            if cost > budget.epsilon:
                raise BudgetExceeded(
                    f"Expected epsilon <= {budget.epsilon:g} for {unit} at delta {budget.delta:g}, found "
                    f"{cost:.4f} after round {round}: stop here, or start a run with more noise or fewer rounds."
                )
        self._append({"unit": unit, "round": round, "what": what, "event": to_json(event)})
        self._remember(entry)
        self._losses[unit] = after

    def has_paid(self, unit: str, round: int, what: str = "update") -> bool:
        """Whether a release of that round was charged before."""
        return (unit, round, what) in self._paid

    def settle(self) -> None:
        """Wait until every line is on the disk: nothing that was paid for may leave before.

        Where a line did not get there, the disk is in a state that nobody knows, and so this ledger refuses
        everything from then on.
        """
        if self._syncing is not None:
            self._failure = self._syncing.exception()
            self._syncing = None
        self._expect_intact()

    def _expect_intact(self) -> None:
        if self._failure is not None:
            raise CloisterError(
                f"Expected the ledger at {self.path} to reach the disk, found {self._failure}: what its last line paid "
                "for was not released, so free space on the disk or mend it, then resume the run."
            ) from self._failure

    def epsilon(self, unit: str, delta: float, accountant: Accountant = "pld") -> float:
        """What the unit has spent so far, at any delta."""
        self._expect_intact()
        loss = self._losses.get(unit)
        return loss.epsilon(delta, accountant) if loss else 0.0

    @property
    def seal(self) -> str:
        """The last line's seal, which commits to the whole file; given out when that line is on the disk."""
        self.settle()
        return self.seals[-1]

    def expect_continues(self, seal: str) -> None:
        """Refuse a ledger from which lines were cut off since `seal` was taken."""
        if seal not in self.seals:
            raise Corrupted(
                f"Expected the ledger at {self.path} to contain the line sealed {seal[:12]}..., which the "
                "checkpoint remembers, found it missing: lines were removed, so restore the ledger."
            )

    def close(self) -> None:
        """Settle, then release the lock; the ledger can still be read."""
        try:
            self.settle()
        finally:
            self._disk.shutdown()
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _remember(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._paid.setdefault((entry.unit, entry.round, entry.what), entry)

    def _append(self, content: dict[str, Any]) -> None:
        seal = _seal(self.seals[-1] if self.seals else "", content)
        if self.path is not None:
            if self._descriptor is None:
                raise CloisterError(f"Expected an open ledger at {self.path}, found it closed: open it again.")
            self._write((json.dumps({**content, "seal": seal}, sort_keys=True) + "\n").encode(), self._descriptor)
        self.seals.append(seal)

    def _write(self, line: bytes, descriptor: int) -> None:
        """Write a line and start to sync it; if that fails (a full disk, say), take back what was written."""
        before = os.fstat(descriptor).st_size
        try:
            while line:
                line = line[os.write(descriptor, line) :]
            self._syncing = self._disk.submit(os.fsync, descriptor)
        except BaseException:
            os.ftruncate(descriptor, before)
            raise


def _seal(previous: str, content: dict[str, Any]) -> str:
    return hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()


def _verify(path: Path, lines: list[bytes]) -> tuple[list[str], list[dict[str, Any]]]:
    seals: list[str] = []
    contents: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            found = content.pop("seal")
        except (ValueError, KeyError, TypeError, AttributeError):
            found, content = None, {}
        seal = _seal(seals[-1] if seals else "", content)
        if found != seal:
            raise Corrupted(
                f"Expected line {number} of {path} to match its seal, found that it was altered: the ledger can "
                "no longer prove what was spent, so restore it from a backup."
            )
        seals.append(seal)
        contents.append(content)
    return seals, contents


def _write_again(path: Path, descriptor: int) -> None:
    """Drop a torn last line and put every byte that stays on the disk, now.

    What an interrupted process wrote may not have got there, and after a failed sync the system may take it for
    written: only what is written again is sure to be synced.
    """
    whole = path.read_bytes()
    whole = whole[: whole.rfind(b"\n") + 1]
    os.ftruncate(descriptor, len(whole))
    with path.open("r+b") as file:
        file.write(whole)
        file.flush()
        os.fsync(file.fileno())


def _open_locked(path: Path, flags: int = 0) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags, 0o644)
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system; two writers would break the chain of seals, visibly
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise CloisterError(
            f"Expected to be the only writer of {path}, found another process at work on this run: wait for it."
        ) from None
    return descriptor
