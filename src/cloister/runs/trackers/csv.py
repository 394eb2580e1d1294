"""A table with a row for every round, and a JSON file beside it that says what it is about."""

from __future__ import annotations

import csv as reader
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.errors import expect, expect_type
from cloister.runs.callbacks import Callback, Record
from cloister.runs.files import read_bytes, write_atomically, write_json
from cloister.runs.trackers.settings import certificate_of, settings_of

if TYPE_CHECKING:
    from cloister.privacy.description import RunDescription
    from cloister.runs.result import Run


class CSV(Callback):
    """Rows are appended as rounds end. A resumed run replaces the rows of rounds that it computes again."""

    name = "csv"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] = []
        self._about: dict[str, Any] = {}
        self._begun = False

    def on_start(self, description: RunDescription) -> None:
        """What the table is about, in the file beside it."""
        self._begun, self._about = False, {"settings": settings_of(description)}
        write_json(self._beside, self._about)

    def on_round(self, record: Record) -> None:
        """One more row."""
        row: dict[str, Any] = {"round": record.round, **record.values}
        rows = [] if self._begun else [old for old in self._read() if int(old["round"]) < record.round]
        if self._begun and row.keys() <= set(self._columns):
            with self.path.open("a", newline="") as file:
                reader.DictWriter(file, self._columns).writerow(row)
            return
        self._write([*(self._read() if self._begun else rows), row])

    def on_end(self, run: Run) -> None:
        """The certificate, beside the table."""
        text, digest = certificate_of(run.certificate)
        self._about |= {"certificate": text, "certificate_sha256": digest, "stopped": run.stopped}
        write_json(self._beside, self._about)

    @property
    def _beside(self) -> Path:
        return self.path.with_suffix(".json")

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return list(reader.DictReader(io.StringIO(read_bytes(self.path).decode())))

    def _write(self, rows: list[dict[str, Any]]) -> None:
        """All rows anew, where one has a column that those before had not."""
        self._begun, self._columns = True, list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        writer = reader.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_atomically(self.path, text.getvalue().encode())


def csv(path: str | Path) -> CSV:
    """A row for every round in the table `path`, and what it is about in a file beside it that ends in .json."""
    expect_type("path", path, (str, Path), "the path of a table", "give a text or a pathlib.Path")
    file = Path(path)
    expect(file.suffix == ".csv", "a table that ends in .csv", str(path), "rename it")
    expect(not file.is_dir(), "a table", f"the folder {file}", "choose another name")
    return CSV(file)
