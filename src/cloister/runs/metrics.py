"""The metrics of a run: a hashed line per round, each with the ledger's hash and a hash of the model at that time.

A ledger from which lines were cut off is found out by them, and a line that was altered by the next one's hash. The
checkpoint remembers the last line before it; a resumed run drops the lines after that and computes them again. What
has other bits then is a new release: the hash tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.ledger import Ledger
from cloister.privacy.ledger_file import HashedLines, hashed, verified
from cloister.runs.files import read_bytes, sync_file, write_atomically


@dataclass
class Metrics:
    """The lines of a run, in memory and in its file."""

    path: Path
    lines: HashedLines

    @classmethod
    def read(cls, path: Path) -> Metrics:
        """The lines so far, verified; a torn last one is not a line."""
        lines = verified(read_bytes(path), path, "what the run reported is no longer what it was")
        metrics = cls(path, lines)
        numbers = [line.get("round") for line in lines.contents]
        if numbers != list(range(1, len(numbers) + 1)):
            raise Corrupted(f"Expected a line for every round in {path}, found others: restore it from a backup.")
        return metrics

    @property
    def hash(self) -> str:
        """The last line's; empty where there is none."""
        return self.lines.hashes[-1] if self.lines.hashes else ""

    def public(self) -> list[dict[str, Any]]:
        """The lines as people want them: without what ties them to other files."""
        return [{k: v for k, v in line.items() if k not in ("ledger", "model")} for line in self.lines.contents]

    def models_after(self, round: int) -> dict[int, str]:
        """Hashes of the models that later rounds gave, where their lines tell."""
        later = (line for line in self.lines.contents if line["round"] > round)
        return {line["round"]: line["model"] for line in later if line.get("model")}

    def append(self, line: Mapping[str, Any], ties: Mapping[str, str | None]) -> None:
        """One more round's line, of values that JSON has, with the ledger's hash and the model's hash."""
        content = {**line, **ties}
        data, line_hash = hashed(self.hash, content)
        with self.path.open("ab") as file:
            file.write(data)
        self.lines.hashes.append(line_hash)
        self.lines.contents.append(content)
        self.lines.lines.append(data[:-1])

    def sync(self) -> None:
        """Onto the disk: what a checkpoint remembers must be there before it is."""
        sync_file(self.path)

    def up_to(self, round: int, line_hash: str) -> Metrics:
        """The lines of the rounds up to a checkpoint, which remembers the last one's hash."""
        hashes, contents, lines = self.lines
        kept = Metrics(self.path, HashedLines(hashes[:round], contents[:round], lines[:round]))
        if len(kept.lines.hashes) < round or kept.hash != line_hash:
            raise Corrupted(
                f"Expected {self.path} to have the lines of rounds 1 to {round} that the checkpoint remembers, found "
                f"{len(self.lines.hashes)} lines, or others: restore it from a backup."
            )
        return kept

    def write(self) -> None:
        """Leave these lines in the file, and no others."""
        write_atomically(self.path, self.lines.data)

    def expect_paid(self, ledger: Ledger) -> None:
        """Refuse a ledger from which lines were cut off that some line here remembers."""
        places = {line_hash: place for place, line_hash in enumerate(ledger.hashes)}
        before = 0
        for line in self.lines.contents:
            remembered = str(line.get("ledger"))
            ledger.expect_continues(remembered, f"round {line['round']} of {self.path.name}")
            if places[remembered] < before:
                raise Corrupted(
                    f"Expected rounds in {self.path} in the order in which they were charged, found round "
                    f"{line['round']} out of order: restore it from a backup."
                )
            before = places[remembered]
