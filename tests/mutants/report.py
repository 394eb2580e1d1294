"""What became of the mutants, as files: docs/mutants.json, and docs/mutants.md for people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from mutants.planted import ROOT, mutants
from mutants.trials import Killed

JSON = ROOT / "docs" / "mutants.json"
MARKDOWN = ROOT / "docs" / "mutants.md"


def commit() -> str:
    """Of what the copies were made of; with a mark where the working tree differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def row_of(killed: Killed, of: str) -> dict[str, Any]:
    """A mutant's line."""
    mutant = killed.mutant
    return {
        "subject": mutant.subject,
        "name": mutant.name,
        "breaks": mutant.breaks,
        "file": mutant.file,
        "killed_by": killed.by,
        "wider": killed.wider,
        "trouble": killed.trouble,
        "seconds": round(killed.seconds, 1),
        "commit": of,
    }


def merged(rows: Iterable[Mapping[str, Any]], path: Path = JSON) -> dict[str, Any]:
    """These lines, and those of before for mutants that were not tried now; without those that are gone."""
    known = {row["name"]: row for row in json.loads(path.read_text())["mutants"]} if path.exists() else {}
    known |= {row["name"]: dict(row) for row in rows}
    listed = [known[mutant.name] for mutant in mutants() if mutant.name in known]
    killed = sum(row["killed_by"] is not None for row in listed)
    return {"mutants": listed, "planted": len(listed), "killed": killed}


def markdown(found: Mapping[str, Any]) -> str:
    """The page."""
    lines = [
        "# Planted privacy bugs",
        "",
        "`make mutants` plants each of these bugs in a copy of the source and runs tests until one fails. Written by",
        "that command from `docs/mutants.json`; the bugs are in `tests/mutants/planted/`. All tests that are named",
        "here pass without the bug.",
        "",
        f"**{found['killed']} of {found['planted']} are caught.**",
        "",
    ]
    for subject, rows in groupby(found["mutants"], key=lambda row: row["subject"]):
        lines += [f"## {subject.capitalize()}", "", "| bug | in | the test that fails | s |", "|---|---|---|---|"]
        lines += [_line(row) for row in rows]
        lines.append("")
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    by = f"`{row['killed_by']}`".replace("tests/", "", 1) if row["killed_by"] else f"**none** {row['trouble'] or ''}"
    return f"| {row['breaks']} | `{row['file']}` | {by.replace('|', chr(92) + '|')} | {row['seconds']:g} |"


def write(found: Mapping[str, Any]) -> None:
    """Both files."""
    JSON.write_text(json.dumps(found, indent=1) + "\n")
    MARKDOWN.write_text(markdown(found))
