"""Tensors as files hold them (safetensors): names, types, shapes and bytes, which can be compared without torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_OTHERS = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}
_KINDS = {"F": "float", "I": "int", "U": "uint"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `dtype` is torch's name for it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    def tensor(self) -> Tensor:
        """The same for torch."""
        import torch

        kind = getattr(torch, self.dtype.removeprefix("torch."))
        if not math.prod(self.shape):
            return torch.empty(self.shape, dtype=kind)
        return torch.frombuffer(self.data, dtype=kind).reshape(self.shape)


def read_tensors(content: bytes) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """What a safetensors file holds, and the words that belong to it; nothing where it is damaged.

    From bytes that were read once: a library that opens a file twice by its name may find two files, because a run that
    is under way replaces its checkpoint.
    """
    from safetensors import SafetensorError, deserialize

    entries_of: Callable[[bytes], Iterable[tuple[str, Mapping[str, Any]]]] = deserialize
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        found = {
            name: StoredTensor(_dtype(about["dtype"]), tuple(about["shape"]), about["data"])
            for name, about in entries_of(content)
        }
        return found, {str(key): str(value) for key, value in header.get("__metadata__", {}).items()}
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
        return {}, {}


def hash_of_stored(tensors: Mapping[str, StoredTensor], about: str = "") -> str:
    """The same as `core.hashing.hash_of` of the tensors: over names, types, shapes and bytes, and over a text."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        digest.update(f"{name}{tensors[name].dtype}{tensors[name].shape}".encode())
        digest.update(tensors[name].data)
    return digest.hexdigest()


def _dtype(code: str) -> str:
    """Torch's name for a type of the format: F32 is torch.float32."""
    return f"torch.{_OTHERS[code] if code in _OTHERS else _KINDS[code[0]] + str(int(code[1:]))}"
