"""Somebody who rewrites published files so that they fit together again: all hashes, the ledger's chain, the pages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cloister.deploy.certificates.signed import signed
from cloister.deploy.wire.identity import PrivateKey
from cloister.privacy.description import RunDescription, json_hash
from cloister.privacy.ledger import Ledger
from cloister.publication.people import people_of
from cloister.publication.publish import RUN_FILES, render, run_page_of
from cloister.runs.certificate_file import Circumstances, certificate_bytes, certificate_values, read_certificate
from cloister.runs.verification import text_of

SIGNED = ("key", "signature")


def values_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "certificate.json").read_text())


def write_values(folder: Path, values: dict[str, Any]) -> None:
    """certificate.json with its own hash to match, and the signature that was there, if there was one."""
    bare = {name: value for name, value in values.items() if name not in ("sha256", *SIGNED)}
    kept = {name: values[name] for name in SIGNED if name in values}
    (folder / "certificate.json").write_bytes(certificate_bytes({**bare, "sha256": json_hash(bare), **kept}))


def rehash(folder: Path) -> None:
    """Hashes of all files as they are."""
    values = values_of(folder)
    values["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in values["files"]}
    write_values(folder, values)


def pages_again(folder: Path) -> None:
    """Text and pages that say what certificate.json says now, and their hashes."""
    stored = read_certificate((folder / "certificate.json").read_bytes(), folder)
    (folder / "certificate.txt").write_bytes(text_of(stored.certificate))
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in RUN_FILES}
    for name, content in render(run_page_of(stored.certificate, stored.people, hashes, None)).items():
        (folder / name).write_bytes(content)
    rehash(folder)


def chain_again(folder: Path, change) -> None:
    """The ledger with changed lines, every hash computed anew."""
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("hash")
    previous, written = "", b""
    for content in change(lines):
        previous = hashlib.sha256((previous + json.dumps(content, sort_keys=True)).encode()).hexdigest()
        written += json.dumps({**content, "hash": previous}, sort_keys=True).encode() + b"\n"
    (folder / "ledger.jsonl").write_bytes(written)


def all_again(folder: Path, key: PrivateKey | None = None) -> None:
    """The certificate that follows from description and ledger as they are now: a forgery that agrees with itself."""
    description = RunDescription.from_json(json.loads((folder / "description.json").read_text()))
    chain_again(folder, lambda lines: [{**lines[0], "subject": description.configuration_hash}, *lines[1:]])
    about = json.loads((folder / "model.json").read_text())
    about["configuration_sha256"] = description.configuration_hash
    (folder / "model.json").write_text(json.dumps(about, indent=2) + "\n")
    ledger, circumstances = Ledger.from_bytes((folder / "ledger.jsonl").read_bytes(), folder), Circumstances()
    certificate = circumstances.certify(description, ledger)
    people = people_of(certificate, description, ledger, circumstances)
    files = {name: (folder / name).read_bytes() for name in RUN_FILES}
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    public = None if key is None else key.public
    files |= {
        "certificate.txt": text_of(certificate),
        **render(run_page_of(certificate, people, hashes, public)),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    values = certificate_values(certificate, files, circumstances, people)
    (folder / "certificate.json").write_bytes(certificate_bytes(values if key is None else signed(values, key)))
