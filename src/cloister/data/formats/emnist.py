"""EMNIST: handwritten digits and letters, in six selections.

G. Cohen, S. Afshar, J. Tapson & A. van Schaik, "EMNIST: an extension of MNIST to handwritten letters", arXiv
1702.05373, 2017. Its images are stored with rows and columns exchanged, and the labels of `letters` count from 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.idx import read_images, read_labels
from cloister.data.formats.source import Source, packed
from cloister.data.raw import RawData, Samples
from cloister.errors import CloisterError, nearest

CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}


def files(root: Path, split: str = "byclass") -> list[Path]:
    """Images and labels of the training part, then of the test part."""
    if split not in CLASSES:
        raise CloisterError(f"Expected a split of EMNIST, found {split!r}: {nearest(str(split), CLASSES)}.")
    kinds = [f"{part}-{kind}-ubyte.gz" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
    return [packed(root / "EMNIST" / "raw" / f"emnist-{split}-{kind}") for kind in kinds]


def read(root: Path, split: str = "byclass") -> RawData:
    """Images uint8 [n, 1, 28, 28], upright; labels from 0. `byclass`: 0-9, A-Z, a-z."""
    sources = [Source(path, "emnist") for path in files(root, split)]
    train, test = (_part(images, labels, split) for images, labels in (sources[:2], sources[2:]))
    return RawData(train, test, CLASSES[split], (0.1736,), (0.3317,))


def _part(images: Source, labels: Source, split: str) -> Samples:
    upright = np.ascontiguousarray(read_images(images).swapaxes(2, 3))
    first = 1 if split == "letters" else 0
    return labels.samples(upright, read_labels(labels).astype(np.int64) - first, CLASSES[split])


EMNIST = Format("emnist", read, files)
