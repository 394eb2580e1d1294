"""MNIST with the writer of every image, from the labels of QMNIST.

C. Yadav & L. Bottou, "Cold case: the lost MNIST digits", NeurIPS 2019. A label is a row of eight int32; column 0 is
the class and column 2 the NIST writer. The first rows of each part are MNIST's images in MNIST's order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cloister.data.formats import mnist
from cloister.data.formats.format import Format
from cloister.data.formats.idx import read_idx
from cloister.data.formats.source import Source, packed
from cloister.data.raw import RawData, Samples

CLASS, WRITER = 0, 2


def files(root: Path) -> list[Path]:
    """MNIST's four files, then QMNIST's labels of the training part and of the test part."""
    names = [f"qmnist-{part}-labels-idx2-int.gz" for part in ("train", "test")]
    return mnist.files(root) + [packed(root / "qmnist" / name) for name in names]


def read(root: Path) -> RawData:
    """MNIST, owned by its writers (int64): 539 of the training part and 297 others of the test part."""
    digits = mnist.read(root, name="qmnist")
    train, test = (Source(path, "qmnist") for path in files(root)[-2:])
    return RawData(_owned(digits.train, train), _owned(digits.test, test), 10, digits.mean, digits.std)


def _owned(samples: Samples, source: Source) -> Samples:
    rows = read_idx(source, ">i4", (None, 8)).astype(np.int64)
    source.expect(len(rows) >= len(samples), f"at least {len(samples)} rows, one for each image", len(rows))
    rows = rows[: len(samples)]
    different = np.flatnonzero(rows[:, CLASS] != samples.labels)
    source.expect(not len(different), "the classes of MNIST", f"another in row {different[:1].tolist()}")
    return Samples(samples.inputs, samples.labels, rows[:, WRITER].copy())


QMNIST = Format("qmnist", read, files)
