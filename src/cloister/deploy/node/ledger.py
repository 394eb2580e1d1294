"""A node's ledger: what its data have spent, in all runs of all servers, and the limits of whoever answers for them.

It belongs to the data, not to a run: a second run, or another server, goes on where the first one ended. Two accounts:

sample  any one row, as against a federation without it. Everything that was released is charged to it. Where neighbors
        differ by a client that is there or not, this is what hides whether the node takes part with all its rows; two
        tables of the node that differ in one row are two such steps apart, and certificates say so (`words.ONE_ROW`).
client  all rows together. Only releases of methods that protect whole clients are charged to it; of others it has lost
        more than any number says, and `whole_client` is then None.

Guarantee: when `charge` returns, the line is on the disk (fsynced) and both accounts are within the limit; when it
raises, the file has not changed. A release is known by run, step and the digest of the offer that asked for it, and
paid for once, however often the offer comes and the node is killed. Lines are never taken back.

A line also says that the answer to an offer was stored, and is on the disk before the answer leaves. Where it is there
and the answer is not, nobody may compute another one: that would be a second release for one price. Where it is not
there, nothing has left, and the price that was paid pays for computing it again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cloister.deploy.ledger_files import open_or_create
from cloister.deploy.terms.terms import TEST_RUN
from cloister.errors import BudgetExceededError, CloisterError
from cloister.privacy.accounts import Account
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Adjacency
from cloister.privacy.ledger import Charge, Ledger
from cloister.privacy.pricing import adjacency_of
from cloister.privacy.unit import ProtectedUnit
from cloister.runs.files import sync_folder

NOT_ASKED = "-"
"""In place of an offer's digest: a round that passed without an offer to this node, and costs what its coin saved."""


class BeyondLimit(BudgetExceededError):
    """A step would exceed the operator's limit. The sentence has what all runs have spent, and is for the operator."""

    told = (
        "Expected this node to stay within its own limit, found more asked for: nothing was computed; ask its operator."
    )
    """What others are told."""


@dataclass(frozen=True)
class Paid:
    """A line of the ledger: what for."""

    run: str
    round: int
    what: str
    offer: str

    @property
    def key(self) -> str:
        """How the ledger's file names it, beside the round."""
        return f"{self.run}/{self.what}/{self.offer}"

    @classmethod
    def of(cls, round: int, key: str) -> Paid:
        """From what the ledger's file says."""
        run, what, offer = key.split("/")
        return cls(run, round, what, offer)


class NodeLedger:
    """What the data of one node have spent. One process at a time has it open."""

    def __init__(self, ledger: Ledger, limit: Budget | None) -> None:
        self._ledger = ledger
        self.limit = limit
        ledger.budgets = {} if limit is None else {unit.value: limit for unit in ProtectedUnit}
        self._answered: dict[tuple[str, int, str], str] = {}
        for entry in ledger.entries:
            self._remember(Paid.of(entry.round, entry.what))
        self._stored = {Paid.of(note.round, note.what): None for note in ledger.notes}

    @classmethod
    def open(cls, path: Path, limit: Budget | None = None, *, writable: bool = True) -> Self:
        """The ledger at a path, or a new one; `limit` is what its operator allows from now on, whatever was before."""
        if limit is not None and limit.order is not None:
            raise CloisterError(
                f"Expected a limit of epsilon and delta, found one of the order {limit.order}: name two numbers."
            )
        if not writable:
            return cls(Ledger.open(path, writable=False), limit)
        new = not path.exists()
        ledger = open_or_create(path, secrets.token_hex(16), {})
        if new:
            sync_folder(path.parent.parent)  # the folder that it may have been the first in
        return cls(ledger, limit)

    @property
    def name(self) -> str:
        """A name for the ledger that says nothing of the data: drawn when it was created."""
        return self._ledger.subject

    @property
    def head(self) -> str:
        """The hash of the last line, which commits to all."""
        return self._ledger.hash

    def charge(self, paid: Paid, unit: ProtectedUnit, charge: Charge) -> None:
        """Pay for a step of a run, once; refused beyond the limit, and where the step was paid for another offer."""
        before = self.answered(paid.run, paid.round, paid.what)
        if before is not None and before != paid.offer:
            raise CloisterError(
                f"Expected one offer for the step {paid.what!r} of round {paid.round}, found a second one "
                f"({paid.offer[:12]}, after {before[:12]}): another answer would be another release, so it is refused."
            )
        refusal = self._refusal(paid, unit, charge)
        if refusal is not None:
            raise BeyondLimit(refusal)
        charges = dict.fromkeys(_accounts(unit), charge)
        self._ledger.charge_each(charges, round=paid.round, what=paid.key, repeatable=True)
        self._ledger.sync()
        self._remember(paid)

    def _refusal(self, paid: Paid, unit: ProtectedUnit, charge: Charge) -> str | None:
        """Why the step cannot be paid, if it cannot. Both accounts are asked before one of them pays."""
        charges = dict.fromkeys(_accounts(unit), charge)
        refused = self._ledger.refusals(charges, round=paid.round, what=paid.key, repeatable=True)
        if not refused or self.limit is None:
            return None
        spent = self.spent(self.limit.delta)
        return (
            f"Expected this node to stay within its own limit, epsilon {self.limit.epsilon:g} at delta "
            f"{self.limit.delta:g}, found {spent:.4f} spent before round {paid.round} and more asked for: nothing was "
            "computed; raise the limit, or leave."
        )

    def answered(self, run: str, round: int, what: str) -> str | None:
        """The digest of the offer for which a step of a run was paid; None where it was not."""
        return self._answered.get((run, round, what))

    def note_stored(self, paid: Paid) -> None:
        """Remember that the answer to an offer was stored and may leave; on the disk when this returns."""
        if paid not in self._stored:
            self._ledger.note(round=paid.round, what=paid.key)
            self._ledger.sync()
            self._stored[paid] = None

    def was_stored(self, paid: Paid) -> bool:
        """Whether the answer to an offer was stored, and may have left."""
        return paid in self._stored

    def last_stored(self, run: str) -> Paid | None:
        """The newest answer of a run that was stored."""
        return next((paid for paid in reversed(self._stored) if paid.run == run), None)

    def has_paid(self, run: str, offer: str) -> bool:
        """Whether an offer of a run was paid for, in whichever step."""
        return any(known == offer for (one, _, _), known in self._answered.items() if one == run)

    def knows(self, head: str) -> bool:
        """Whether a hash is that of one of the lines."""
        return head in self._ledger.hashes

    def spent(self, delta: float) -> float:
        """The epsilon that any one row has lost, in all runs together."""
        return self._ledger.epsilon(ProtectedUnit.SAMPLE, delta)

    def whole_client(self, delta: float) -> float | None:
        """The epsilon that all rows together have lost; None where something was released that bounds no such thing."""
        accounts = self.accounts()
        if accounts[ProtectedUnit.SAMPLE].events != accounts[ProtectedUnit.CLIENT].events:
            return None
        return self._ledger.epsilon(ProtectedUnit.CLIENT, delta)

    def accounts(self, run: str | None = None) -> dict[str, Account]:
        """What was charged, to the rows and to all of them together, in all runs or in one."""
        found = {unit.value: Account(unit.value, self.limit, Counter()) for unit in ProtectedUnit}
        for entry in self._ledger.entries:
            if run is None or Paid.of(entry.round, entry.what).run == run:
                found[entry.unit].events[entry.event] += entry.count
                found[entry.unit].rounds.add(entry.round)
        return found

    @property
    def hides_whole_nodes(self) -> bool:
        """Whether some releases were priced against a node that does not take part, rather than by a row's change."""
        events = self.accounts()[ProtectedUnit.CLIENT].events
        return any(adjacency_of(event) is Adjacency.ADD_OR_REMOVE_ONE for event in events)

    @property
    def runs(self) -> list[str]:
        """All runs for which something was paid, the first one first."""
        return list(dict.fromkeys(run for run, _, _ in self._answered))

    @property
    def test_runs(self) -> list[str]:
        """Those of them in test mode. What they released has no bound, whatever was charged for it."""
        return [run for run in self.runs if run.startswith(TEST_RUN)]

    def expect_bounded(self, test_mode: bool) -> None:
        """Refuse a run under a limit that the data are beyond already, because they took part in test mode."""
        if self.limit is not None and self.test_runs and not test_mode:
            raise BudgetExceededError(
                f"Expected data of which a limit can be kept, found that they took part in {len(self.test_runs)} runs "
                "in test mode, whose noise follows from a seed in the terms: nothing bounds what they have lost, so "
                "join without a limit, or with other data and a ledger of their own."
            )

    def close(self) -> None:
        """Release the file."""
        self._ledger.close()

    def _remember(self, paid: Paid) -> None:
        self._answered[paid.run, paid.round, paid.what] = paid.offer


def _accounts(unit: ProtectedUnit) -> tuple[str, ...]:
    """Who pays: any one row always, all together where they are protected together."""
    both = (ProtectedUnit.SAMPLE.value, ProtectedUnit.CLIENT.value)
    return both if unit is ProtectedUnit.CLIENT else both[:1]
