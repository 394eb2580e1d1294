"""Samples that everybody may see, for methods that need some: a file of them, known by its SHA-256."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cloister.core import Samples
from cloister.deploy.terms.sample_terms import SampleTerms
from cloister.errors import CloisterError, expect


@dataclass(frozen=True)
class PublicTerms:
    """The table [public] of terms: which file of public samples is meant, wherever a site keeps it."""

    sha256: str

    def __post_init__(self) -> None:
        fine = isinstance(self.sha256, str) and re.fullmatch(r"[0-9a-f]{64}", self.sha256) is not None
        expect(fine, "the SHA-256 of a file in [public], as 64 hexadecimal digits", self.sha256, "compute it anew")

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"sha256": self.sha256}

    @classmethod
    def of(cls, table: Any) -> PublicTerms:
        """From plain values."""
        expect(isinstance(table, Mapping) and set(table) == {"sha256"}, "[public] with sha256 alone", table, "fix it")
        return cls(table["sha256"])

    def read(self, path: str | Path, samples: SampleTerms) -> Samples:
        """The samples, where this is their file."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise CloisterError(
                f"Expected the file of public samples, found {str(path)!r} ({error.strerror}): check the path."
            ) from None
        found = hashlib.sha256(content).hexdigest()
        expect(found == self.sha256, f"the public samples {self.sha256[:12]}...", f"{found[:12]}...", "get that file")
        try:
            tensors = load(content)
        except SafetensorError:
            tensors = {}
        inputs, labels = tensors.get("inputs"), tensors.get("labels")
        like = samples.blank(1)
        fits = inputs is not None and labels is not None and len(inputs) == len(labels) > 0
        for given, wanted in zip((inputs, labels), like, strict=True):
            fits = fits and given is not None and (given.shape[1:], given.dtype) == (wanted.shape[1:], wanted.dtype)
        expect(fits, "public inputs and labels as [samples] or [schema] declares rows", str(path), "write it anew")
        assert inputs is not None
        assert labels is not None
        return inputs, labels


def write_public(path: str | Path, inputs: Tensor, labels: Tensor) -> str:
    """Write public samples to a file, and return its SHA-256 for the terms."""
    content = save({"inputs": inputs.contiguous(), "labels": labels.contiguous()})
    Path(path).write_bytes(content)
    return hashlib.sha256(content).hexdigest()
