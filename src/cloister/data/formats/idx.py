"""The idx format of MNIST: two zero bytes, a type, a rank, the lengths (big-endian), the values (big-endian)."""

from __future__ import annotations

import math

import numpy as np

from cloister.data.formats.source import Source
from cloister.data.raw import Array

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(source: Source, dtype: str, shape: tuple[int | None, ...]) -> Array:
    """The array of an idx file, which must have this type and this shape (None: any length)."""
    data = source.content()
    rank = len(shape)
    source.expect(len(data) >= 4 + 4 * rank, "an idx file", f"{len(data)} bytes")
    magic = data[:2] == b"\0\0" and data[2] in TYPES and data[3] == rank
    source.expect(magic, f"the magic number of an idx file of rank {rank}", f"0x{data[:4].hex()}")
    source.expect(TYPES[data[2]] == dtype, f"values of type {dtype}", TYPES[data[2]])
    lengths = tuple(int(n) for n in np.frombuffer(data, ">u4", rank, 4))
    fits = all(want is None or want == have for want, have in zip(shape, lengths, strict=True))
    source.expect(fits, f"shape {['n' if n is None else n for n in shape]}", list(lengths))
    size = math.prod(lengths) * np.dtype(dtype).itemsize
    body = len(data) - 4 - 4 * rank
    source.expect(
        body == size, f"{size} bytes of values", f"{body} (the file is too {'short' if body < size else 'long'})"
    )
    return np.frombuffer(data, dtype, offset=4 + 4 * rank).reshape(lengths)


def read_images(source: Source) -> Array:
    """Images of 28x28 bytes as [n, 1, 28, 28]."""
    return read_idx(source, "u1", (None, 28, 28))[:, None]


def read_labels(source: Source) -> Array:
    """Labels [n], as they are stored."""
    return read_idx(source, "u1", (None,))
