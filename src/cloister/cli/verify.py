"""`cloister verify`: what published files prove, of a run or of a federation, and what they only state."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cloister.cli.output import say, working
from cloister.errors import CloisterError

if TYPE_CHECKING:
    from cloister.deploy.terms.terms import Terms
    from cloister.deploy.wire.identity import PublicKey

WRONG = 1
"""The exit status where something is not as it should be."""


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Folders of published files, runs or federations; certificates and receipts (.json)."),
    ],
    key: Annotated[
        str | None, typer.Option(help="Who must have signed what was published: ed25519:..., or a file with that line.")
    ] = None,
    terms: Annotated[
        Path | None, typer.Option(help="The terms of a federation: signatures must be of the keys in them.")
    ] = None,
) -> None:
    """Say what published files prove by themselves, and what they only state.

    Of a run (cloister publish): hashes, signature, the ledger's chain, every price again from its events by two
    accountants, and the pages for people, byte by byte. Of a federation: signatures, prices, and whether the server
    told every node one history: a server that showed two has signed both, and receipts side by side prove it. The exit
    status is 1 where anything is wrong.
    """
    for path in paths:
        if not path.exists():
            raise CloisterError(
                f"Expected certificates, receipts or a folder, found nothing at {path}: check the path."
            )
    from cloister.publication.recognition import recognize
    from cloister.publication.verification import verify_folder

    wanted = None if key is None else _public(key)
    given = recognize(paths)
    agreed = _terms(terms, paths, federated=bool(given.documents))  # before anything is called good
    good = True
    for place, folder in enumerate(given.publications):
        with working(f"looking at {folder}"):
            found = verify_folder(folder, wanted)
        good &= found.good
        if given.documents and found.good:  # in a federation the model is one of many things
            say(f"good   {folder}: files of a model that {found.headline}")
        else:
            say(("\n" if place else "") + "\n".join(found.lines()))
    for path in given.others:
        say(f"WRONG  {path}: Expected a certificate or a receipt, found something else: it was changed.")
        good = False
    if given.documents:
        good &= _federation(given.documents, agreed)
    if not good:
        raise typer.Exit(WRONG)


def _federation(documents: list[Path], terms: Terms | None) -> bool:
    from cloister.deploy.certificates.verification import verify as verified

    found = verified(documents, terms)
    for mark, lines in (("good ", found.confirmed), ("note ", found.notes), ("WRONG", found.wrong)):
        for line in lines:
            say(f"{mark}  {line}")
    return found.good


def _public(text: str) -> PublicKey:
    from cloister.deploy.wire.identity import PublicKey

    file = Path(text)
    if not text.startswith("ed25519:") and file.is_file() and file.stat().st_size < 1000:
        text = file.read_text(errors="replace").strip()
    return PublicKey.from_text(text)


def _terms(named: Path | None, paths: list[Path], federated: bool) -> Terms | None:
    """The terms that were named, or those beside a whole federation."""
    if named is not None and not federated:
        raise CloisterError(
            "Expected certificates or receipts of a federation with --terms, found none: leave --terms out, or name "
            "them as well."
        )
    beside = (path / "terms.toml" for path in paths if (path / "terms.toml").is_file())
    place = named if named is not None else next(beside, None)
    if place is None or not federated:
        return None
    from cloister.deploy.terms.terms import Terms

    return Terms.load(place)
