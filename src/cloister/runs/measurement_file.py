"""measurements.jsonl: what a run recorded, beside its log and for its owner alone.

The first line says what was asked for, then there is one for each round. Every line with something that is not private
carries the mark. No other file refers to it: a run can be verified, shown and published without it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.description import plain
from cloister.runs.files import read_bytes, sync_file, write_atomically
from cloister.runs.recorded import MARK, NOT_PRIVATE, Recorded, not_private_in

NAME = "measurements.jsonl"


@dataclass(frozen=True)
class MeasurementFile:
    """The file of a run that records something."""

    path: Path

    @classmethod
    def of(cls, folder: Path) -> MeasurementFile:
        """That of the run in a folder."""
        return cls(folder / NAME)

    @classmethod
    def create(cls, folder: Path, names: Sequence[str]) -> None:
        """A file without a round."""
        cls.of(folder).write(names, [])

    @classmethod
    def resume(cls, folder: Path, names: Sequence[str], rounds: int) -> tuple[MeasurementFile, Recorded]:
        """The file of a run that goes on after so many rounds, with their lines: what came after is measured again."""
        found = cls.of(folder)
        recorded = read(folder)
        lines = [] if recorded is None else recorded.lines[:rounds]
        if recorded is None or [line["round"] for line in lines] != list(range(1, rounds + 1)):
            raise Corrupted(
                f"Expected a line for each of rounds 1 to {rounds} in {found.path}, found others: restore it from a "
                "backup."
            )
        found.write(names, lines)
        return found, Recorded(tuple(names), lines)

    def write(self, names: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> None:
        """These lines, and no others."""
        text = b"".join(map(_encoded, [_header(names), *lines]))
        write_atomically(self.path, text, private=True)

    def append(self, line: Mapping[str, Any]) -> None:
        """One more round's line."""
        with self.path.open("ab") as file:
            file.write(_encoded(line))

    def sync(self) -> None:
        """Onto the disk: the lines up to a checkpoint must be there before it is."""
        sync_file(self.path)


def _header(names: Sequence[str]) -> dict[str, Any]:
    marked = {"mark": MARK, "note": NOT_PRIVATE} if not_private_in(names) else {}
    return {**marked, "record": list(names)}


def marked(line: Mapping[str, Any]) -> dict[str, Any]:
    """A round's line with its mark, where something in it is not private."""
    return {"round": line["round"], **({"mark": MARK} if line["not_private"] else {}), **line}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(plain(marked(line) if "round" in line else line)) + "\n").encode()


def read(folder: Path) -> Recorded | None:
    """What the run in a folder recorded, without a torn last line; None where nothing was asked for."""
    path = folder / NAME
    if not path.is_file():
        return None
    whole = read_bytes(path).decode(errors="replace").split("\n")[:-1]
    try:
        header, *lines = map(json.loads, whole)
        names = tuple(header["record"])
        kept = [{key: numbers(value) for key, value in line.items() if key != "mark"} for line in lines]
        there = all(isinstance(line["round"], int) and line.keys() == _LINE for line in kept)
    except (ValueError, KeyError, TypeError, AttributeError):
        there = False
    if not there:
        raise Corrupted(f"Expected measurements, a line for each round, in {path}, found it damaged: restore it.")
    return Recorded(names, kept)


def numbers(value: Any) -> Any:
    """What JSON has no number for, as a number again: the inverse of `plain`."""
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


_LINE = {"round", "released", "not_private"}
