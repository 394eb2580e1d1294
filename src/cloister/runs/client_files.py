"""clients.json: exact scores client by client, beside a run and marked as not private."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.description import plain
from cloister.runs.client_scores import ClientScores
from cloister.runs.files import read_json, write_atomically
from cloister.runs.personalization import Personalized

NAME = "clients.json"


def write(folder: Path, scores: ClientScores, personalized: Personalized | None) -> None:
    """Leave the scores in the folder of a run, for its owner alone."""
    found = scores.to_json()
    if personalized is not None:
        found["personalization"] = personalized.to_json()
    write_atomically(folder / NAME, (json.dumps(plain(found), indent=2) + "\n").encode(), private=True)


def read(folder: Path) -> tuple[ClientScores, ClientScores | None] | None:
    """The scores of a run, and those after personalization where there was any; None where none were kept."""
    if not (folder / NAME).is_file():
        return None
    found = read_json(folder / NAME)
    try:
        after: Any = found.get("personalization")
        return ClientScores.from_json(found), None if after is None else ClientScores.from_json(after)
    except (KeyError, TypeError, AttributeError):
        raise Corrupted(f"Expected scores by client in {folder / NAME}, found it damaged: restore it.") from None
