"""The certificate for people of whatever has one: a run, its published files, the model of a federation, a node, a
server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloister.deploy.certificates.signed import NODE, SERVER, read_document, signer_of
from cloister.deploy.wire.identity import PublicKey
from cloister.errors import CloisterError
from cloister.publication.contents import read_plain
from cloister.publication.page import Page
from cloister.publication.people import attacker_of, renderers
from cloister.publication.publish import RUN_FILES, certified, hashes, run_page_of
from cloister.publication.recognition import format_of
from cloister.publication.verification import verify_folder
from cloister.runs.certificate_file import StoredCertificate, read_certificate
from cloister.runs.folder import RunFolder, is_publication


def certificate_text(path: Path) -> str:
    """As text."""
    document = _document(path)
    if document is not None:
        from cloister.deploy.certificates.node_certificate import node_text
        from cloister.deploy.certificates.server_certificate import server_text

        return server_text(document) if document["format"] == SERVER else node_text(document)
    folder = path if path.is_dir() else path.parent
    if not is_publication(folder):
        return str(RunFolder.open(folder).certificate())
    return str(_stored(folder).certificate)


def page_of(path: Path) -> Page:
    """As a page."""
    document = _document(path)
    if document is not None:
        from cloister.publication.federation_page import node_page, server_page

        return server_page(document) if document["format"] == SERVER else node_page(document)
    folder = path if path.is_dir() else path.parent
    if not is_publication(folder):
        certificate, people = certified(folder)
        return run_page_of(certificate, people, hashes(_read(folder), RUN_FILES), None)
    stored = _stored(folder)
    people = stored.people or _few(stored)
    key = PublicKey.from_text(stored.values["key"]) if stored.signed else None
    return run_page_of(stored.certificate, people, hashes(stored, RUN_FILES), key)


def _few(stored: StoredCertificate) -> dict[str, Any]:
    """What can be said without a ledger."""
    c = stored.certificate
    return {"subject": c.released, **attacker_of(c), "accounts": [], "renderers": renderers()}


def _stored(folder: Path) -> StoredCertificate:
    """The certificate of a publication in which nothing is wrong."""
    found = verify_folder(folder)
    if not found.good:
        raise CloisterError(f"{found.wrong[0]} (`cloister verify {folder}` tells all.)")
    return _read(folder)


def _read(folder: Path) -> StoredCertificate:
    return read_certificate(read_plain(folder / "certificate.json"), folder)


def _document(path: Path) -> dict[str, Any] | None:
    """A document of a federation, as it was signed; None where it is something else."""
    file = path / "certificate.json" if path.is_dir() else path
    if not file.is_file() or format_of(file) not in (NODE, SERVER):
        return None
    document = read_document(file)
    signer_of(document, str(file))
    return document
