"""The ledger: append-only facts about what was released, paid for before it is computed.

Guarantee: when `charge` returns, the line that pays for the release is written and the unit's composed epsilon is
within its budget; when it raises, nothing was written. When `sync` returns, every line is on the disk (fsynced).
A round charges before it computes anything, and syncs before anything computed leaves it, so the disk has the
round's time to work. A process killed, or a machine without power, at any instant leaves a ledger that shows at
least what was released, never less.

| what happens                                | what the ledger does                                             |
|---------------------------------------------|------------------------------------------------------------------|
| the budget would be exceeded                | raises `BudgetExceededError`; the file does not change           |
| the event has no proven price               | raises `UnsupportedMechanismError`; the file does not change     |
| a line cannot be written (a full disk)      | what was written of it is taken back; `charge` raises            |
| the disk fails under a line that is written | `sync` raises, before anything left; so does every later call    |
| killed while a line was being written       | a line that is not whole paid for nothing and is dropped         |
| a last line is whole but for its newline    | it counts: it may have paid for something                        |
| killed between `charge` and `sync`          | the line stays and pays for a round that released nothing        |
| the power fails between the two             | the line may be lost, and with it the round that it paid for     |
| a byte was changed, a line removed          | raises `Corrupted` when opened: every line hashes the ones before |
| the last lines were cut off                 | raises `Corrupted`: checkpoint, metrics and certificate know them |
| a seeded round is computed a second time    | if the same bits come out, the line that is there pays for it    |
| a round with secure noise is repeated       | it is a new release and pays again                               |
| some of many accounts have nothing left     | these are refused, with words; the others pay                    |

The file is JSON lines. The first is a header (format, what the run is, budgets); each further line is a number of equal
releases to each of some units (the clients' one account, or one account for the samples of each client). A line of no
units charges nobody: it is a note, kept with what was paid. `line_hash` is SHA-256 over the previous line's hash and
this line's content.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from cloister.errors import BudgetExceededError, CloisterError, Corrupted, UnsupportedMechanismError
from cloister.privacy.accountant import Accountant
from cloister.privacy.budgets import Budget, Loss, nothing_lost
from cloister.privacy.events import Event, NoOp, from_json
from cloister.privacy.ledger_file import (
    Appending,
    HashedLines,
    expect_format,
    hashed,
    open_locked,
    read_hashed,
    verified,
    write_again,
)
from cloister.privacy.pricing import pricing_of

_FORMAT = "cloister ledger 4"


@dataclass(frozen=True)
class Charge:
    """What is to be paid: so many releases, each costing an event."""

    event: Event
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise CloisterError(
                f"Expected at least one release in a charge, found {self.count}: nothing is given back."
            )


@dataclass(frozen=True)
class Entry:
    """Releases to one unit: in which round, of what, under which noise, and how many of them."""

    unit: str
    round: int
    what: str
    event: Event
    count: int = 1


@dataclass(frozen=True)
class Note:
    """Something about a round that is remembered with what was paid for it, and costs nothing."""

    round: int
    what: str


class Ledger:
    """What each unit has spent. Make one with `create`, or `open` an existing file."""

    def __init__(self, path: Path | None, subject: str, budgets: Mapping[str, Budget]) -> None:
        self.path = path
        self.subject = subject
        self.budgets = dict(budgets)
        self.entries: list[Entry] = []
        self.notes: list[Note] = []
        self.hashes: list[str] = []
        self._paid: dict[tuple[str, int, str], Entry] = {}
        self._losses: dict[str, Loss] = {}
        self._untouched: dict[int | None, Loss] = {}
        self._file = Appending(path)

    @classmethod
    def create(cls, path: Path | None, subject: str, budgets: Mapping[str, Budget]) -> Self:
        """A new ledger for the run whose description has the hash `subject`; in memory where path is None."""
        ledger = cls(path, subject, budgets)
        if path is not None:
            if path.exists():
                raise CloisterError(f"Expected no ledger at {path}, found one: choose another folder or resume it.")
            ledger._file.descriptor = open_locked(path, os.O_CREAT | os.O_EXCL)
        header = {"format": _FORMAT, "subject": subject, "budgets": {u: asdict(b) for u, b in budgets.items()}}
        ledger._write_all([header])
        ledger.sync()
        return ledger

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> Self:
        """Read and verify a ledger; `writable` also locks it and drops a torn last line."""
        if not path.is_file():
            raise CloisterError(f"Expected a ledger at {path}, found none: name the folder of a run.")
        expect_format(path, _FORMAT)
        descriptor = open_locked(path) if writable else None
        try:
            lines = read_hashed(path, "the ledger can no longer prove what was spent")
            ledger = cls._of(path, lines)
            if descriptor is not None:
                write_again(path, descriptor, lines.data)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        ledger._file.descriptor = descriptor
        return ledger

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> Self:
        """The ledger that a file at a path holds, of bytes that were read from it: to be looked at, not written to."""
        return cls._of(path, verified(data, path, "the ledger can no longer prove what was spent"))

    @classmethod
    def _of(cls, path: Path, lines: HashedLines) -> Self:
        if not lines.contents or lines.contents[0].get("format") != _FORMAT:
            raise Corrupted(f"Expected a ledger of the format {_FORMAT!r} at {path}: restore it from a backup.")
        try:
            return cls._told(path, lines)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, UnsupportedMechanismError):
                raise
            raise Corrupted(
                f"Expected lines of a ledger at {path}, found something else ({error}): restore it from a backup."
            ) from error

    @classmethod
    def _told(cls, path: Path, lines: HashedLines) -> Self:
        """The ledger that the lines tell of."""
        header = lines.contents[0]
        ledger = cls(path, header["subject"], {u: Budget(**b) for u, b in header["budgets"].items()})
        ledger.hashes = lines.hashes
        for content in lines.contents[1:]:
            charge = Charge(from_json(content["event"]), content["count"])
            if not content["units"]:
                ledger.notes.append(Note(content["round"], content["what"]))
            after: dict[int, Loss] = {}  # units that have lost the same so far go on together
            for unit in content["units"]:
                before = ledger._loss(unit)
                if id(before) not in after:
                    after[id(before)] = before.copy()
                    after[id(before)].add(charge.event, charge.count)
                ledger._losses[unit] = after[id(before)]
                ledger._remember(Entry(unit, content["round"], content["what"], charge.event, charge.count))
        return ledger

    def charge(
        self, unit: str, event: Event, *, round: int, what: str = "update", repeatable: bool, count: int = 1
    ) -> None:
        """Pay for a release before it is computed. What is computed may leave the round once `sync` returns.

        `repeatable` says that computing it again gives the same bits (seeded randomness), so that a round
        which was paid for before a crash need not be paid for twice.
        """
        refused = self.charge_each({unit: Charge(event, count)}, round=round, what=what, repeatable=repeatable)
        if refused:
            raise BudgetExceededError(refused[unit])

    def charge_each(
        self, charges: Mapping[str, Charge], *, round: int, what: str = "update", repeatable: bool
    ) -> dict[str, str]:
        """Pay every unit's charge of a round, as `charge` does, and return why those are refused that cannot pay."""
        self.sync()  # a line is only ever written below lines that are on the disk
        paying, lines, refused = [], [], {}
        for group in self._groups(charges, round, what, repeatable):
            if group.refusal is not None:
                refused.update(dict.fromkeys(group.units, group.refusal))
                continue
            event, count = pricing_of(group.charge.event).json, group.charge.count
            lines.append({"units": group.units, "round": round, "what": what, "count": count, "event": event})
            paying.append(group)
        self._write_all(lines)
        for group in paying:
            for unit in group.units:
                self._remember(Entry(unit, round, what, group.charge.event, group.charge.count))
                self._losses[unit] = group.after
        return refused

    def note(self, *, round: int, what: str) -> None:
        """Remember something about a round, in a line that charges nobody; on the disk when `sync` returns."""
        self.sync()
        event = pricing_of(NoOp()).json
        self._write_all([{"units": [], "round": round, "what": what, "count": 1, "event": event}])
        self.notes.append(Note(round, what))

    def refusals(
        self, charges: Mapping[str, Charge], *, round: int, what: str = "update", repeatable: bool
    ) -> set[str]:
        """Which units could not pay; nothing is written."""
        groups = self._groups(charges, round, what, repeatable)
        return {unit for group in groups if group.refusal is not None for unit in group.units}

    def _groups(self, charges: Mapping[str, Charge], round: int, what: str, repeatable: bool) -> list[_Group]:
        """Units that are to pay, those together whose past and charge are the same: they are priced once."""
        alike: dict[tuple[Any, ...], list[str]] = {}
        for unit, charge in charges.items():
            paid = self._paid.get((unit, round, what)) if repeatable else None
            if paid and paid != Entry(unit, round, what, charge.event, charge.count):
                raise Corrupted(
                    f"Expected round {round} to repeat the release it was charged for ({paid.event}), found "
                    f"{charge.event}: the run's configuration changed, so start a new run."
                )
            if not paid:
                alike.setdefault((charge, self.budgets.get(unit), id(self._loss(unit))), []).append(unit)
        groups = []
        for (charge, budget, _), units in alike.items():
            after = self._loss(units[0]).copy()
            after.add(charge.event, charge.count)
            groups.append(_Group(units, charge, after, _refusal(units[0], budget, after, round)))
        return groups

    def _loss(self, unit: str) -> Loss:
        """What the unit has lost so far. Units that have lost nothing share one object: see `_groups`."""
        if unit not in self._losses:
            budget = self.budgets.get(unit)
            order = None if budget is None else budget.order
            self._losses[unit] = self._untouched.setdefault(order, nothing_lost(budget))
        return self._losses[unit]

    def has_paid(self, unit: str, round: int, what: str = "update") -> bool:
        """Whether a release of that round was charged before."""
        return (unit, round, what) in self._paid

    def sync(self) -> None:
        """Wait until every line is on the disk: nothing that was paid for may leave before. See `Appending.sync`."""
        self._file.sync()

    def epsilon(self, unit: str, delta: float, accountant: Accountant = "pld") -> float:
        """What the unit has spent so far, at any delta."""
        self._file.expect_intact()
        return self._loss(unit).epsilon(delta, accountant)

    def most(self, delta: float) -> float:
        """What the unit has spent that has spent most."""
        self._file.expect_intact()
        different = {id(loss): loss for loss in self._losses.values()}
        return max((loss.epsilon(delta) for loss in different.values()), default=0.0)

    @property
    def hash(self) -> str:
        """The last line's hash, which commits to the whole file; given out when that line is on the disk."""
        self.sync()
        return self.hashes[-1]

    def expect_continues(self, line_hash: str, who: str = "the checkpoint") -> None:
        """Refuse a ledger from which lines were cut off since `line_hash` was taken, as somebody remembers."""
        if line_hash not in self.hashes:
            raise Corrupted(
                f"Expected the ledger at {self.path} to contain the line hashed {line_hash[:12]}..., which {who} "
                "remembers, found it missing: lines were removed, so restore the ledger."
            )

    def close(self) -> None:
        """Sync, then release the lock; the ledger can still be read."""
        self._file.close()

    def _remember(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._paid.setdefault((entry.unit, entry.round, entry.what), entry)

    def _write_all(self, contents: list[dict[str, Any]]) -> None:
        """Write lines and start to sync them; if that fails (a full disk, say), take back what was written."""
        hashes, lines = self.hashes[-1:], b""
        for content in contents:
            line, found = hashed(hashes[-1] if hashes else "", content)
            hashes.append(found)
            lines += line
        if lines:
            self._file.append(lines)
        self.hashes += hashes[len(self.hashes[-1:]) :]


@dataclass(frozen=True)
class _Group:
    """Units that pay together: with what they will have lost, and why they cannot pay, if they cannot."""

    units: list[str]
    charge: Charge
    after: Loss
    refusal: str | None


def _refusal(unit: str, budget: Budget | None, after: Loss, round: int) -> str | None:
    """Why a unit that would have lost so much after a round cannot pay for it; None where it can."""
    if budget is None:
        return None
    cost = after.epsilon(budget.delta)
    if cost <= budget.epsilon:
        return None
    return (
        f"Expected epsilon <= {budget.epsilon:g} for {unit} at delta {budget.delta:g}, found {cost:.4f} after round "
        f"{round}: stop here, or start a run with more noise or fewer rounds."
    )
