"""model.json: what it takes beside the weights to use a model, declared values alone.

Nothing in it depends on what the clients' samples are like (scores do, and stay in the private checkpoint), so that it
can be published with the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from cloister.errors import CloisterError, Corrupted
from cloister.privacy.description import RunDescription, plain

FORMAT = "cloister model 1"


@dataclass(frozen=True)
class ModelJson:
    """What model.json holds."""

    format: str
    model: dict[str, Any]
    """Its name and arguments (`ModelSource`); the name is "own" where it was built in Python."""
    outputs: int
    dtype: str
    loss: dict[str, Any]
    metrics: list[str]
    """By which it was judged."""
    classes: int | None
    class_names: list[str]
    preprocessing: dict[str, Any]
    inputs: dict[str, Any]
    """dtype and shape of one stored input."""
    encoder: dict[str, Any] | None
    adaptation: dict[str, Any] | None
    standardization: dict[str, Any] | None
    configuration_sha256: str

    def to_bytes(self) -> bytes:
        """As a file that people can read."""
        return (json.dumps(plain(self), indent=2) + "\n").encode()

    @classmethod
    def from_bytes(cls, content: bytes, place: object) -> Self:
        """The inverse; refuses what does not fit."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        named = isinstance(found, dict) and found.get("format")
        if named and named != FORMAT:
            raise CloisterError(f"Expected {FORMAT!r} in {place}, found {named!r}: use the version that wrote it.")
        if not isinstance(found, dict) or not _is_whole(found):
            raise Corrupted(f"Expected a readable model.json in {place}, found it damaged: restore it.")
        return cls(**found)

    def expect_of(self, description: RunDescription, place: object) -> None:
        """It is about the run that is described."""
        task = description.task
        same = (
            self.configuration_sha256 == description.configuration_hash
            and {"name": self.loss["name"], **self.loss["settings"]} == plain(task.loss)
            and {"name": self.preprocessing["name"], **self.preprocessing["settings"]} == plain(task.preprocessing)
        )
        if not same:
            raise Corrupted(f"Expected the model.json of the run in {place}, found another: restore it.")


def _is_whole(found: dict[str, Any]) -> bool:
    """Whether all is there that a model's file has, and of the right types."""
    parts = {
        "model": {"name": str, "arguments": dict},
        "loss": {"name": str, "settings": dict, "own": bool},
        "preprocessing": {"name": str, "settings": dict},
        "inputs": {"dtype": str, "shape": list},
    }
    if set(found) != {field.name for field in fields(ModelJson)}:
        return False
    for part, wanted in parts.items():
        values = found[part]
        if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != wanted:
            return False
    counts = [*found["inputs"]["shape"], found["outputs"], *([] if found["classes"] is None else [found["classes"]])]
    whole = all(type(count) is int and count >= 0 for count in counts)
    names = all(_words(found[name]) for name in ("class_names", "metrics"))
    more = all(isinstance(found[name], (dict, type(None))) for name in ("encoder", "adaptation", "standardization"))
    return whole and names and more and all(isinstance(found[name], str) for name in ("dtype", "configuration_sha256"))


def _words(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def expect_hashes(files: Mapping[str, Any] | None, contents: Mapping[str, bytes], place: object) -> None:
    """Every file is the one whose hash is in the certificate."""
    for name, content in contents.items():
        known = files.get(name) if isinstance(files, Mapping) else None
        if hashlib.sha256(content).hexdigest() != known:
            raise Corrupted(f"Expected the {name} that the certificate in {place} is about, found another: restore it.")
