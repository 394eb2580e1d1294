"""Ledgers that are there or not, never in between: a process that is killed while it makes one leaves none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloister.errors import CloisterError
from cloister.privacy.budgets import Budget
from cloister.privacy.ledger import Ledger
from cloister.runs.files import sync_folder


def open_or_create(path: Path, subject: str, budgets: Mapping[str, Budget]) -> Ledger:
    """The ledger at a path; where there is none, a new one, which is on the disk under this name once it is whole."""
    if not path.exists():
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)  # of a process that was killed
        ledger = Ledger.create(draft, subject, budgets)
        ledger.close()
        os.chmod(draft, 0o600)
        try:
            os.link(draft, path)  # which replaces nothing
        except FileExistsError as error:
            raise CloisterError(
                f"Expected to be alone in {path.parent}, found that another process made a ledger there: end one of "
                "them, and start again."
            ) from error
        finally:
            draft.unlink()
        sync_folder(path.parent)
    return Ledger.open(path)
