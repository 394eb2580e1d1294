"""Whether what a run left at its end is what its ledger and its last checkpoint say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloister.errors import Corrupted
from cloister.privacy.certificate import Certificate
from cloister.privacy.description import RunDescription, plain
from cloister.privacy.ledger import Ledger
from cloister.runs.certificate_file import Circumstances, StoredCertificate
from cloister.runs.checkpoint import Checkpoint, StoredCheckpoint
from cloister.runs.files import read_bytes
from cloister.runs.metrics import Metrics
from cloister.runs.model_json import ModelJson, expect_hashes
from cloister.runs.recorded import not_private_in
from cloister.runs.tensor_file import read_tensors

CERTIFIED = ("model.safetensors", "model.json", "certificate.txt", "description.json", "ledger.jsonl")
"""Files that the certificate of a run names by their hashes."""


def expect_ended(
    path: Path,
    stored: StoredCertificate,
    certificate: Certificate,
    description: RunDescription,
    at: StoredCheckpoint,
    metrics: Metrics,
    ledger: Ledger,
) -> None:
    """The stored certificate is that of the ledger, and model, text, metrics and checkpoint are those of its end.

    `certificate` was computed afresh.
    """
    expect_follows(stored, certificate, path)
    contents = {name: read_bytes(path / name) for name in CERTIFIED}
    expect_hashes(stored.files, contents, path)
    if same_words(stored, certificate) and contents["certificate.txt"] != text_of(certificate):
        raise Corrupted(f"Expected the certificate.txt of the certificate in {path}, found another: restore it.")
    ModelJson.from_bytes(contents["model.json"], path).expect_of(description, path)
    if not _holds_model(contents["model.safetensors"], list(description.model.shapes), at):
        raise Corrupted(f"Expected the model of the last checkpoint in {path}, found another: restore both.")
    whole = all(read_bytes(path / name)[-1:] in (b"", b"\n") for name in ("ledger.jsonl", "metrics.jsonl"))
    if (
        at.hash != ledger.hash
        or at.metrics != metrics.hash
        or not whole
        or circumstances_at(at) != stored.circumstances
    ):
        raise Corrupted(
            f"Expected the last checkpoint, ledger and metrics of {path}, which has ended, found others: "
            "restore checkpoint.safetensors, ledger.jsonl and metrics.jsonl."
        )


def circumstances_at(at: StoredCheckpoint | Checkpoint) -> Circumstances:
    """What the last checkpoint knows of the gaps."""
    return Circumstances(tuple(at.gaps), at.stop is not None, tuple(not_private_in(at.recorded)))


def expect_follows(stored: StoredCertificate, computed: Certificate, path: Path) -> None:
    """Refuse a certificate that is not the one which was computed afresh from description and ledger."""
    wrong = _differs(stored.certificate, computed)
    if wrong:
        raise Corrupted(
            f"Expected the certificate in {path} to follow from its ledger, found another {wrong}: one of the "
            "two was altered or put back, so restore both."
        )


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


_WORDS = frozenset(
    {
        *("adjacency", "released", "trusted", "sampling_executed", "sampling_accounted", "divided_by", "not_covered"),
        *("noise_arithmetic", "versions"),
    }
)
"""What another version of Cloister may say in other words."""
_COMPUTED = ("prices", "filter", "claimed")


def same_words(stored: StoredCertificate, computed: Certificate) -> bool:
    """Whether the version of Cloister that wrote a certificate is this one, and says the same in the same words."""
    return stored.certificate.versions.get("cloister") == computed.versions["cloister"]


def _differs(stored: Certificate, computed: Certificate) -> str | None:
    """What a stored certificate says that does not follow from description and ledger, if anything.

    Prices are compared as numbers, because another processor may add otherwise; other versions of the accountants may
    have closer bounds.
    """
    one, other = plain(stored.to_json()), plain(computed.to_json())
    theirs, ours = one["versions"], other["versions"]
    same = {name: theirs.get(name) == ours[name] for name in ("cloister", "dp-accounting")}
    for name in other:
        if name in _COMPUTED or name == "versions" or (name in _WORDS and not same["cloister"]):
            continue
        if one[name] != other[name]:
            return str(name)
    tolerance = 1e-6 if all(same.values()) else 1e-2
    return None if all(_close(one[name], other[name], tolerance) for name in _COMPUTED) else "prices"


def agrees(stored: Mapping[str, Any], computed: Mapping[str, Any], same: bool) -> bool:
    """Whether plain values that were stored are those that were computed afresh, numbers up to rounding: `same` says
    that the same software computed both."""
    return _close(stored, computed, 1e-6 if same else 1e-2)


def _close(one: Any, other: Any, tolerance: float) -> bool:
    """Whether two plain values are the same, numbers up to a relative tolerance."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_close(one[key], other[key], tolerance) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(lambda a, b: _close(a, b, tolerance), one, other))
    numbers = isinstance(one, (int, float)) and isinstance(other, (int, float))
    return math.isclose(one, other, rel_tol=tolerance) if numbers else bool(one == other)
