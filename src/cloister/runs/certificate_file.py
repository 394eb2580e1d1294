"""certificate.json: what a certificate says, of which files it speaks, and what else it follows from.

All values of the certificate, and beside them

format         which layout this is
circumstances  what description and ledger do not know: notes, whether the run ended early, what was measured beside it
people         what the pages for people say beyond the certificate (`publication/`), where they are among the files
files          SHA-256 of every file that belongs to it
sha256         of all of the above: a file that was changed without thought shows it
key, signature where somebody signed it (ed25519): only then nobody else can rewrite all of it, hashes included

One value has one text: a file whose bytes are not those that this version would write is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from cloister.errors import CloisterError, Corrupted, shown
from cloister.privacy.certificate import Certificate, certify
from cloister.privacy.description import RunDescription, json_hash, plain
from cloister.privacy.ledger import Ledger
from cloister.privacy.promised import Price

FORMAT = "cloister certificate 2"
SIGNED = ("key", "signature")
_BESIDE = ("format", "circumstances", "people", "files", "sha256", *SIGNED)
MOST_BYTES = 64 * 2**20
"""A certificate that is larger is none."""


@dataclass(frozen=True)
class Circumstances:
    """What a certificate follows from beside the description and the ledger. In a run the checkpoint knows it."""

    notes: tuple[str, ...] = ()
    ended_early: bool = False
    recorded: tuple[str, ...] = ()

    def certify(self, description: RunDescription, ledger: Ledger) -> Certificate:
        """The certificate, computed afresh."""
        return certify(description, ledger, self.notes, self.ended_early, self.recorded)

    @classmethod
    def from_json(cls, found: Any, place: object) -> Self:
        """The inverse of `asdict`; refuses what does not fit."""
        fits = isinstance(found, dict) and set(found) == {field.name for field in fields(cls)}
        if fits and isinstance(found["ended_early"], bool) and _words(found["notes"]) and _words(found["recorded"]):
            return cls(tuple(found["notes"]), found["ended_early"], tuple(found["recorded"]))
        raise Corrupted(f"Expected the circumstances of a run in {place}, found {shown(found)}: restore it.")


@dataclass(frozen=True)
class StoredCertificate:
    """What certificate.json holds, once its own hash was found to be right."""

    values: dict[str, Any]
    """All of it."""
    certificate: Certificate
    circumstances: Circumstances | None
    """None where the certificate does not follow from a description and a ledger alone."""
    people: dict[str, Any] | None
    files: dict[str, str]

    @property
    def signed(self) -> bool:
        """Whether somebody signed it, or it says so."""
        return any(name in self.values for name in SIGNED)


def certificate_values(
    certificate: Certificate,
    files: Mapping[str, bytes],
    circumstances: Circumstances | None = None,
    people: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What certificate.json holds before it is signed. `files` are all that it speaks of, by name."""
    values: dict[str, Any] = {"format": FORMAT, **certificate.to_json()}
    if circumstances is not None:
        values["circumstances"] = asdict(circumstances)
    if people is not None:
        values["people"] = people
    values["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    values = plain(values)
    return {**values, "sha256": json_hash(values)}


def certificate_bytes(values: Mapping[str, Any]) -> bytes:
    """The file: the one text of these values."""
    return (json.dumps(plain(values), indent=2) + "\n").encode()


def read_certificate(data: bytes, place: object) -> StoredCertificate:
    """What certificate.json in a place holds; refused where a byte of it was changed. (Signatures are for others.)"""
    values = _values(data, place)
    if values.get("format") != FORMAT:
        raise CloisterError(
            f"Expected {FORMAT!r} in certificate.json in {place}, found {shown(values.get('format'))}: use the version "
            "of Cloister that wrote it, or run it again."
        )
    bare = {name: value for name, value in values.items() if name not in ("sha256", *SIGNED)}
    if values.get("sha256") != json_hash(bare) or certificate_bytes(values) != data:
        raise Corrupted(f"Expected certificate.json in {place} as it was written, found it changed: restore it.")
    files, people = values.get("files"), values.get("people")
    circumstances = values.get("circumstances")
    damaged = Corrupted(f"Expected a readable certificate.json in {place}, found it damaged: restore it.")
    if not isinstance(files, dict) or not _words(list(files.values())) or not isinstance(people, (dict, type(None))):
        raise damaged
    try:
        certificate = _certificate({name: value for name, value in values.items() if name not in _BESIDE})
    except (TypeError, KeyError):
        raise damaged from None
    told = None if circumstances is None else Circumstances.from_json(circumstances, place)
    return StoredCertificate(values, certificate, told, people, files)


def _values(data: bytes, place: object) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise Corrupted(f"Expected a certificate.json in {place}, found {len(data):,} bytes: that is something else.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    raise Corrupted(f"Expected a readable certificate.json in {place}, found it damaged: restore it.")


def _certificate(values: dict[str, Any]) -> Certificate:
    if set(values) != {field.name for field in fields(Certificate)} or not values["prices"]:
        raise TypeError
    if not isinstance(values["versions"], dict) or not isinstance(values["versions"]["cloister"], str):
        raise TypeError
    return Certificate(**{**values, "prices": [Price(**price) for price in values["prices"]]})


def _words(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)
