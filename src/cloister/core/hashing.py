"""Hashes of tensors: how runs, checkpoints and models are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_BLOCK = 2**24


def hash_of(tensors: Mapping[str, Tensor], about: str = "", after: Callable[[], None] | None = None) -> str:
    """SHA-256 over names, types, shapes and bytes, and over a text that belongs to them.

    `after` is called after every 16 MiB: tensors that lie on the disk need not be in memory as a whole.
    """
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        content = tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b""
        for start in range(0, len(content), _BLOCK):
            digest.update(content[start : start + _BLOCK])
            if after is not None:
                after()
    return digest.hexdigest()
