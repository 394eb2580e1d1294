"""The text of a CSV file: its rows with their lines, its header, and whether all rows are of one length."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cloister.data.user.tables import Layout, expect_different, separator_remedy
from cloister.errors import CloisterError


@dataclass(frozen=True)
class CsvText:
    """A file that was opened: its text, the names of its columns, and how many lines these take."""

    path: Path
    text: str
    names: list[str]
    skipped: int
    separator: str

    @classmethod
    def open(cls, path: Path, layout: Layout) -> CsvText:
        """The text of a file, which must be one, and its columns."""
        text = _text(path)
        names, skipped = _header(path, text, layout)
        return cls(path, text, names, skipped, layout.separator)

    @property
    def body(self) -> str:
        """All but the header, and the end of the last line."""
        at = 0
        for _ in range(self.skipped):
            at = self.text.find("\n", at) + 1 or len(self.text)
        return self.text[at:] if self.text.endswith("\n") else self.text[at:] + "\n"

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not blank, with the number of the line in which it ends."""
        return ((line, row) for line, row in _rows(self.path, self.text, self.separator) if line > self.skipped)

    @cached_property
    def even_rows(self) -> int | None:
        """How many rows there are, if all have a cell for every column.

        With quotes about, which may hide separators and ends of lines, rows are read one by one.
        """
        width, text = len(self.names), self.text
        if '"' in text:
            try:
                lengths = [len(row) for _, row in self.rows()]
            except CloisterError:
                return None
            return len(lengths) if set(lengths) <= {width} else None
        characters = np.frombuffer(text.encode(), dtype=np.uint8)
        starts = np.append(0, np.flatnonzero(characters == ord("\n")) + 1)
        starts = starts[starts < len(characters)]
        separators = np.add.reduceat((characters == ord(self.separator)).view(np.uint8), starts, dtype=np.int32)
        there = (characters[starts] != ord("\n"))[self.skipped :]
        even = (separators[self.skipped :] == width - 1) | ~there
        return int(there.sum()) if even.all() else None


def first_row(path: Path, separator: str) -> list[str]:
    """The cells of a file's first row."""
    return [cell.strip() for cell in next(_rows(path, _text(path), separator))[1]]


def _text(path: Path) -> str:
    data = path.read_bytes()
    if not data.strip():
        raise CloisterError(f"Expected a table in {path}, found an empty file: remove it, or give it a header.")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise CloisterError(
            f"Expected text in {path}, found binary data in line {line}: save the table as CSV in UTF-8."
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CloisterError(
            f"Expected UTF-8 in {path}, found the byte {data[error.start]:#04x} in line {line}: save it as UTF-8."
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _rows(path: Path, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Every row that is not blank, with the number of the line in which it ends."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                yield reader.line_num, row
    except csv.Error as error:
        raise CloisterError(
            f"Expected CSV in {path}, found an error in line {reader.line_num} ({error}): check its quotes."
        ) from None


def _header(path: Path, text: str, layout: Layout) -> tuple[list[str], int]:
    """The names of the columns, and how many lines they take."""
    line, row = next(_rows(path, text, layout.separator))
    if layout.headers:
        fitting = next((list(names) for names in layout.headers if len(names) == len(row)), None)
        if fitting is None:
            remedy = separator_remedy(row, layout.separator).replace("header", "first row")
            raise CloisterError(
                f"Expected {len(layout.headers[0])} cells in a row of {path}, as the schema has columns, found "
                f"{len(row)} in line {line}: {remedy or 'fix the file or the schema'}."
            )
        return fitting, 0
    names = [name.strip() for name in row]
    unnamed = [number for number, name in enumerate(names, start=1) if not name]
    if unnamed:
        raise CloisterError(f"Expected a name for every column of {path}, found none for column {unnamed[0]}: add it.")
    expect_different(names, str(path))
    return names, line
