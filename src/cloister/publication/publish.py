"""`publish`: exactly the files of a run that may leave the house, with a certificate that binds every one of them.

model.safetensors, model.json     the model, and how it is used
description.json                  what was executed: all that has a bearing on the price
ledger.jsonl                      what was charged
certificate.txt, .html, .pdf      for people
certificate.json                  for programs, with the hashes of all others; signed where a key is given

Whatever else a run folder holds (checkpoint, metrics, measurements, scores of clients) is not protected, and stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloister.deploy.certificates.signed import signed
from cloister.deploy.wire.identity import PrivateKey, PublicKey
from cloister.errors import CloisterError, expect
from cloister.privacy.certificate import Certificate
from cloister.publication.html import html
from cloister.publication.page import Page
from cloister.publication.pdf import pdf
from cloister.publication.people import people_of
from cloister.publication.run_page import run_page
from cloister.runs.certificate_file import StoredCertificate, certificate_bytes, certificate_values, read_certificate
from cloister.runs.files import new_folder, read_bytes, write_atomically
from cloister.runs.folder import RunFolder
from cloister.runs.verification import text_of

RUN_FILES = ("model.safetensors", "model.json", "description.json", "ledger.jsonl")
PAGES = ("certificate.txt", "certificate.html", "certificate.pdf")
PUBLISHED = (*RUN_FILES, *PAGES, "certificate.json")


@dataclass(frozen=True)
class Published:
    """What was written, and what must be said about it."""

    folder: Path
    certificate: Certificate
    key: PublicKey | None


def publish(run: str | Path, folder: str | Path, key: PrivateKey | None = None) -> Published:
    """Write the files to be published of a run that has ended, into a new folder; signed where a key is given."""
    source, target = Path(run), Path(folder)
    expect(not target.exists() and not target.is_symlink(), "a new folder", str(target), "choose another name")
    public = None if key is None else key.public
    certificate, people = certified(source)
    stored = read_certificate(read_bytes(source / "certificate.json"), source)
    files = {name: read_bytes(source / name) for name in RUN_FILES}
    pages = render(run_page_of(certificate, people, hashes(stored, RUN_FILES), public))
    files |= {"certificate.txt": text_of(certificate), **pages}
    values = certificate_values(certificate, files, stored.circumstances, people)
    if key is not None:
        values = signed(values, key)
    with new_folder(target) as place:
        for name, content in files.items():
            write_atomically(place / name, content)
        write_atomically(place / "certificate.json", certificate_bytes(values))
    return Published(target, certificate, public)


def certified(run: Path) -> tuple[Certificate, dict[str, Any]]:
    """The certificate of a run that has ended, computed afresh, and what people are told beside it."""
    folder = RunFolder.open(run)
    found = folder.verified()
    if found.certificate is None:
        raise CloisterError(
            f"Expected a run that has ended, found that {run} has not: `cloister resume {run}` goes on."
        )
    stored = read_certificate(read_bytes(run / "certificate.json"), run)
    assert stored.circumstances is not None
    # What was written when the run ended: on another processor the last digits may differ.
    certificate = stored.certificate
    return certificate, people_of(certificate, folder.description(), found.ledger, stored.circumstances)


def hashes(stored: StoredCertificate, names: tuple[str, ...]) -> dict[str, str]:
    """Of the files that pages name."""
    return {name: stored.files[name] for name in names if name in stored.files}


def run_page_of(
    certificate: Certificate, people: Mapping[str, Any], files: Mapping[str, str], key: PublicKey | None
) -> Page:
    """The page about a run, with the key of whoever signs."""
    return run_page(certificate, people, files, None if key is None else (key.text, key.fingerprint))


def render(page: Page) -> dict[str, bytes]:
    """The page in every format, by file."""
    return {"certificate.html": html(page), "certificate.pdf": pdf(page)}
