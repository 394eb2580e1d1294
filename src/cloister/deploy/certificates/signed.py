"""Documents that people keep and compare: plain values, signed by whoever vouches for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.deploy.wire.canonical import canonical
from cloister.deploy.wire.identity import PrivateKey, PublicKey
from cloister.errors import CloisterError
from cloister.runs.files import read_json, write_atomically

NODE = "cloister node certificate 1"
RECEIPT = "cloister receipt 1"
SERVER = "cloister server certificate 1"

NOT_PRIVATE = (
    "NOT PRIVATE: this federation ran in test mode. Everything random follows from a seed that is in the terms, so "
    "that whoever has them can remove the noise. No number below is a guarantee."
)


def signed(document: Mapping[str, Any], key: PrivateKey) -> dict[str, Any]:
    """The document with the signer's key and signature."""
    values = {**document, "key": key.public.text}
    return {**values, "signature": key.sign(_text(values)).hex()}


def signer_of(document: Mapping[str, Any], what: str) -> PublicKey:
    """Whose signature a document has; refused where it is not that of the key it names."""
    values = {name: value for name, value in document.items() if name != "signature"}
    text = str(document.get("signature"))
    try:
        key, raw = PublicKey.from_text(str(document.get("key"))), bytes.fromhex(text)
        good = raw.hex() == text and key.verify(_text(values), raw)  # a signature has one text as well
    except ValueError:
        good = False
    if not good:
        raise CloisterError(
            f"Expected {what} as it was signed, found it changed, or the signature of another key: ask for it again."
        )
    return key


def _text(values: Mapping[str, Any]) -> bytes:
    return b"cloister document 1\n" + canonical(dict(values))


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A file that people can read: the one text of a document."""
    return (json.dumps(document, indent=2) + "\n").encode()


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write it."""
    write_atomically(path, document_bytes(document))


def read_document(path: Path) -> dict[str, Any]:
    """A document from a file; which kind it is stands under `format`."""
    found = read_json(path)
    if found.get("format") not in (NODE, RECEIPT, SERVER):
        raise CloisterError(
            f"Expected a certificate or a receipt of a federation, found something else in {path}: name "
            "certificate.json or receipt.json of a node's run, or certificate.json of the server."
        )
    return found
