"""Hashes of tensors: how runs, checkpoints and models are told apart."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def hash_of(tensors: Mapping[str, Tensor], about: str = "") -> str:
    """SHA-256 over names, types, shapes and bytes, and over a text that belongs to them."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()
