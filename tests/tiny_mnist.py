"""A data folder with a few made-up images in MNIST's files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np


def idx(path: Path, array: np.ndarray) -> None:
    """Bytes in the format of these files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


def write_tiny_mnist(root: Path) -> None:
    """60 training and 20 test images of noise, in ten classes."""
    random = np.random.default_rng(0)
    for part, count in (("train", 60), ("t10k", 20)):
        images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        idx(root / f"MNIST/raw/{part}-images-idx3-ubyte.gz", images)
        idx(root / f"MNIST/raw/{part}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
