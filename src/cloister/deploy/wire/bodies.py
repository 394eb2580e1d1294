"""Tensors as bytes: safetensors, which holds names, types, shapes and numbers, and nothing that could be run."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from cloister.deploy.wire.canonical import JSON, canonical, digest_of
from cloister.deploy.wire.refused import Refused, accept_if
from cloister.errors import expect

_NAMES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""The types of numbers that travel, as safetensors calls them; wide ones come first, so that all are aligned."""

DTYPES = frozenset(_NAMES)
_ORDER = list(_NAMES)


@dataclass(frozen=True)
class Body:
    """Packed tensors and their hash: made once where many messages carry the same ones."""

    pieces: tuple[bytes | memoryview, ...]
    sha256: str

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Body:
        """The body of tensors, which may change afterwards."""
        data = pack(tensors)
        return cls((data,), digest_of(data))

    @classmethod
    def borrowed(cls, tensors: Mapping[str, Tensor]) -> Body:
        """The body of tensors that do not change as long as it is in use: nothing is copied."""
        pieces, digest = _pieces(tensors), hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        return cls(pieces, digest.hexdigest())

    @property
    def length(self) -> int:
        """Its bytes."""
        return sum(len(piece) for piece in self.pieces)


def pack(tensors: Mapping[str, Tensor]) -> bytes:
    """The tensors as safetensors; no tensors are no bytes. The same tensors are the same bytes."""
    return b"".join(_pieces(tensors))


def _pieces(tensors: Mapping[str, Tensor]) -> tuple[bytes | memoryview, ...]:
    """What `pack` joins: a header, which is the library's format, and the tensors' own memory, without a copy."""
    if not tensors:
        return ()
    for name, tensor in tensors.items():
        expect(tensor.dtype in DTYPES, "a tensor of floats or integers", tensor.dtype, f"convert {name!r}")
    header: dict[str, JSON] = {}
    pieces: list[bytes | memoryview] = []
    at = 0
    for name in sorted(tensors, key=lambda name: (_ORDER.index(tensors[name].dtype), name)):
        tensor = tensors[name].detach().cpu().contiguous()
        piece = tensor.reshape(-1).view(torch.uint8).numpy().data
        span = [at, at + len(piece)]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": span}
        at += len(piece)
        pieces.append(piece)
    text = canonical(header)
    text += b" " * (-len(text) % 8)
    return (struct.pack("<Q", len(text)) + text, *pieces)


def unpack(body: bytes) -> dict[str, Tensor]:
    """The tensors of a body; refuses what is no safetensors or has another type of number."""
    if not body:
        return {}
    try:
        tensors = safetensors.torch.load(body)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Refused(f"Expected a body in safetensors, found another ({error}): send it again.") from None
    for name, tensor in tensors.items():
        accept_if(tensor.dtype in DTYPES, "tensors of floats or integers", f"{tensor.dtype} in {name!r}", "convert it")
    return tensors
