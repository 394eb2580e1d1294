"""Whether what a run left at its end is what its ledger and its last checkpoint say."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.certificate import Certificate
from cloister.privacy.description import RunDescription, json_hash, plain
from cloister.privacy.ledger import Ledger
from cloister.runs.checkpoint import StoredCheckpoint
from cloister.runs.files import read_bytes
from cloister.runs.metrics import Metrics
from cloister.runs.model_json import ModelJson, expect_hashes
from cloister.runs.tensor_file import read_tensors


def expect_ended(
    path: Path,
    stored: Mapping[str, Any],
    certificate: Certificate,
    description: RunDescription,
    at: StoredCheckpoint,
    metrics: Metrics,
    ledger: Ledger,
) -> None:
    """The stored certificate is that of the ledger, and model, text, metrics and checkpoint are those of its end.

    `certificate` was computed afresh.
    """
    expect_unchanged(stored, path)
    wrong = _differs(stored, plain(certificate.to_json()))
    if wrong:
        raise Corrupted(
            f"Expected the certificate in {path} to follow from its ledger, found another {wrong}: one of the "
            "two was altered or put back, so restore both."
        )
    contents = {name: read_bytes(path / name) for name in ("model.safetensors", "model.json", "certificate.txt")}
    expect_hashes(stored.get("files"), contents, path)
    same_software = stored.get("versions") == certificate.versions  # else it may say things in other words
    if same_software and contents["certificate.txt"] != text_of(certificate):
        raise Corrupted(f"Expected the certificate.txt of the certificate in {path}, found another: restore it.")
    ModelJson.from_bytes(contents["model.json"], path).expect_of(description, path)
    if not _holds_model(contents["model.safetensors"], list(description.model.shapes), at):
        raise Corrupted(f"Expected the model of the last checkpoint in {path}, found another: restore both.")
    whole = all(read_bytes(path / name)[-1:] in (b"", b"\n") for name in ("ledger.jsonl", "metrics.jsonl"))
    if at.hash != ledger.hash or at.metrics != metrics.hash or not whole:
        raise Corrupted(
            f"Expected the last checkpoint, ledger and metrics of {path}, which has ended, found others: "
            "restore checkpoint.safetensors, ledger.jsonl and metrics.jsonl."
        )


def certificate_file(certificate: Certificate, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What certificate.json holds: the certificate, the hashes of the files that it is about, and that of itself."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    values = plain({**certificate.to_json(), "files": hashes})
    return {**values, "sha256": json_hash(values)}


def expect_unchanged(stored: Mapping[str, Any], path: Path) -> None:
    """The file is as it was written. (Whoever writes a new hash beside other words is found out by the ledger.)"""
    if stored.get("sha256") != json_hash({name: value for name, value in stored.items() if name != "sha256"}):
        raise Corrupted(f"Expected certificate.json in {path} as it was written, found it changed: restore it.")


def text_of(certificate: Certificate) -> bytes:
    """The certificate as a file for people."""
    return (str(certificate) + "\n").encode()


def _holds_model(content: bytes, names: list[str], at: StoredCheckpoint) -> bool:
    """Whether a model's file holds the trained parameters that a checkpoint keeps, to the bit, whatever it holds beside
    them. `names` are those of the trained parameters, in the order of the flat vector.
    """
    tensors, _ = read_tensors(content)
    if not set(names) <= set(tensors):
        return False
    pieces, kept = [tensors[name] for name in names], at.result
    return all(piece.dtype == kept.dtype for piece in pieces) and b"".join(piece.data for piece in pieces) == kept.data


def _differs(stored: Mapping[str, Any], computed: Mapping[str, Any]) -> str | None:
    """What a stored certificate says that does not follow from the ledger, if anything.

    Prices are compared as numbers, because another processor may add otherwise. Software of other versions may say
    things in other words, and have closer bounds.
    """
    same_software = stored.get("versions") == computed["versions"]
    unknown = [key for key in stored if key not in computed and key not in ("files", "sha256")]
    if same_software and unknown:
        return unknown[0]
    exact = ("configuration_sha256", "ledger_hash", "rounds_charged", "releases_charged", "budget", "noise_multiplier")
    for name in (key for key in computed if key not in ("prices", "filter", "claimed")) if same_software else exact:
        if stored.get(name) != computed[name]:
            return name
    pairs = [(stored.get(name), computed[name]) for name in ("prices", "filter", "claimed")]
    return None if all(_close(one, other, 1e-6 if same_software else 1e-2) for one, other in pairs) else "prices"


def _close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values are the same, numbers up to a relative tolerance."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(lambda a, b: _close(a, b, tolerance), one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=tolerance) if numbers else bool(one == other)
