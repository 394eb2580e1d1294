"""What campaigns came to, as files: docs/torture.json, and docs/torture.md for people."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torture.campaign import Campaign, Tally

ROOT = Path(__file__).parents[2]
JSON = ROOT / "docs" / "torture.json"
MARKDOWN = ROOT / "docs" / "torture.md"


def commit() -> str:
    """Of what was tested; with a mark where the working tree differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def row_of(campaign: Campaign, tally: Tally, seed: int, seconds: float) -> dict[str, Any]:
    """A campaign's part of the file."""
    return {
        "about": campaign.about,
        **tally.to_json(),
        "found_wrong": len(tally.wrong),
        "seed": seed,
        "seconds": round(seconds),
        "commit": commit(),
    }


def merged(rows: Mapping[str, Mapping[str, Any]], path: Path = JSON) -> dict[str, Any]:
    """These campaigns, and those of before that were not run now."""
    known = json.loads(path.read_text()) if path.exists() else {}
    return {**known, **rows}


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page."""
    lines = [
        "# Crash and fuzz campaigns",
        "",
        "Written by `make torture` from `docs/torture.json`. A case is wrong where a ledger shows less than has left,",
        "a resumed run differs from one that was left alone, an epsilon is smaller than what was spent, code in a file",
        "is executed, something hangs, or an error is no sentence of ours.",
        "",
        "| campaign | one case | cases | wrong | seed | commit |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in found.items():
        about, wrong = row["about"], row["found_wrong"]
        lines.append(f"| {name} | {about} | {row['cases']:,} | {wrong} | {row['seed']} | `{row['commit']}` |")
    for name, row in found.items():
        lines += ["", f"## {name.capitalize()}", "", "| what | how often |", "|---|---|"]
        lines += [f"| {what} | {count:,} |" for what, count in row["counts"].items()]
        lines += ["", *(f"- WRONG: {one}" for one in row["wrong"])] if row["wrong"] else []
    return "\n".join([*lines, ""])


def write(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Both files."""
    JSON.write_text(json.dumps(found, indent=1) + "\n")
    MARKDOWN.write_text(markdown(found))
