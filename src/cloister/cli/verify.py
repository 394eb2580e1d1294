"""`cloister verify`: whether certificates and receipts of a federation are as signed, and tell one history."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cloister.cli.output import say
from cloister.errors import CloisterError

WRONG = 1
"""The exit status where something is not as it should be."""


def verify(
    files: Annotated[
        list[Path],
        typer.Argument(help="Certificates and receipts (.json) of nodes and of the server, or folders with them."),
    ],
    terms: Annotated[
        Path | None, typer.Option(help="The terms you agreed to: signatures must be of the keys in them.")
    ] = None,
) -> None:
    """Check signatures, compute prices afresh, and compare what the server told each node.

    A server that showed two nodes different histories has signed both: their receipts side by side prove it.
    (Certificates of simulated runs are computed afresh by `cloister show`.)
    """
    from cloister.deploy.certificates.verification import verify as verified
    from cloister.deploy.terms.terms import Terms

    for path in files:
        if path.is_file() and path.suffix != ".json":
            raise CloisterError(
                f"Expected certificates and receipts (.json), found {path}: name those, or their folder."
            )
        if not path.exists():
            raise CloisterError(
                f"Expected certificates, receipts or a folder, found nothing at {path}: check the path."
            )
    given = [file for path in files for file in (_documents(path) if path.is_dir() else [path])]
    known = terms if terms is not None else _terms_in(files)
    found = verified(given, None if known is None else Terms.load(known))
    for line in found.confirmed:
        say(f"good   {line}")
    for line in found.notes:
        say(f"note   {line}")
    for line in found.wrong:
        say(f"WRONG  {line}")
    if not found.good:
        raise typer.Exit(WRONG)


def _documents(folder: Path) -> list[Path]:
    """All certificates and receipts of a federation in a folder; the certificate beside a model is of another kind."""
    from cloister.deploy.certificates.signed import NODE, RECEIPT, SERVER
    from cloister.runs.files import read_json

    there = sorted(path for name in ("certificate.json", "receipt.json") for path in folder.rglob(name))
    found = [path for path in there if read_json(path).get("format") in (NODE, RECEIPT, SERVER)]
    if not found:
        raise CloisterError(
            f"Expected certificates or receipts in {folder}, found none: name the folder of a federation that has "
            "ended, or files."
        )
    return found


def _terms_in(files: list[Path]) -> Path | None:
    """The terms, where a whole federation is looked at."""
    return next((path / "terms.toml" for path in files if (path / "terms.toml").is_file()), None)
