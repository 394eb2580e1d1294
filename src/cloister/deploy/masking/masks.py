"""Vectors of whole numbers modulo 2^bits: masks from ChaCha20 added in place, and the bytes that travel.

A mask is the key stream of ChaCha20 under a key that is used for nothing else, read as little-endian numbers of the
smallest width that holds `bits`. Wrapping around at that width is exact modulo 2^bits, and what leaves is cut to
`bits`: otherwise the sum of masked vectors would say how often the numbers wrapped around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from torch import Tensor

from cloister.deploy.wire.refused import accept_if

Vector = NDArray[Any]
KEY_BYTES = 32
_CHUNK = 1 << 18
_ZEROS = bytes(_CHUNK)


def zeros(length: int, bits: int) -> Vector:
    """A vector to add to."""
    return np.zeros(length, _dtype(bits))


def residues(numbers: Tensor, bits: int) -> Vector:
    """Whole numbers, negative ones included, modulo 2^bits (or a larger power, which is cut off in `packed`)."""
    return numbers.detach().to("cpu", torch.int64).numpy().astype(_dtype(bits))


def add_mask(total: Vector, key: bytes, subtract: bool = False) -> None:
    """Add the mask of a key in place, or take it away. Chunks stay in the processor's cache."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    buffer = bytearray(min(_CHUNK, total.nbytes))
    mask = np.frombuffer(buffer, total.dtype)
    change = np.subtract if subtract else np.add
    for first in range(0, len(total), len(mask)):
        part = total[first : first + len(mask)]
        stream.update_into(_ZEROS[: part.nbytes], buffer)
        change(part, mask[: len(part)], out=part)


def packed(total: Vector, bits: int) -> Tensor:
    """The bytes of the numbers modulo 2^bits, as few whole bytes for each as hold them."""
    cut = total & total.dtype.type(2**bits - 1)
    columns = cut.view(np.uint8).reshape(len(cut), -1)[:, : -(-bits // 8)]
    return torch.from_numpy(np.ascontiguousarray(columns).reshape(-1))


def unpacked(data: Tensor, length: int, bits: int) -> Vector:
    """The numbers of such bytes; refuses what `packed` cannot have made."""
    width = -(-bits // 8)
    accept_if(data.dtype == torch.uint8, "a masked vector of bytes", str(data.dtype), "send what the masking gave")
    found, wanted = tuple(data.shape), (length * width,)
    accept_if(found == wanted, f"{length} masked numbers of {width} bytes", found, "mask a vector of that length")
    columns = data.detach().cpu().numpy().reshape(length, width)
    if bits % 8:
        largest = int(columns[:, -1].max(initial=0))
        accept_if(largest < 2 ** (bits % 8), f"masked numbers below 2^{bits}", largest, "cut them to their bits")
    numbers = zeros(length, bits)
    numbers.view(np.uint8).reshape(length, -1)[:, :width] = columns
    return numbers


def centered(total: Vector, bits: int) -> Tensor:
    """The residues as signed numbers, from -2^(bits-1) to 2^(bits-1) - 1, in int64.

    >>> centered(np.array([3, 15], np.uint8), 4)
    tensor([ 3, -1])
    """
    unused = 64 - bits
    return torch.from_numpy(np.right_shift(np.left_shift(total.astype(np.int64), unused), unused))


def _dtype(bits: int) -> np.dtype[Any]:
    width = next(width for width in (1, 2, 4, 8) if bits <= 8 * width)
    return np.dtype(f"<u{width}")
