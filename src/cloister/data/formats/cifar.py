"""CIFAR-10 and CIFAR-100, in their Python version.

A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Each file is a pickled dictionary: data,
a uint8 array [n, 3072] of red, green and blue planes, and a list of labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.safe_pickle import load_dictionary, uint8_array
from cloister.data.formats.source import Source
from cloister.data.raw import RawData, Samples
from cloister.data.splits import joined


@dataclass(frozen=True)
class _Kind:
    """Where one of the two keeps what."""

    name: str
    classes: int
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    labels: bytes
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def files(self, root: Path) -> list[Path]:
        """The files of the training part, then that of the test part."""
        return [root / self.folder / name for name in self.train + self.test]

    def read(self, root: Path) -> RawData:
        """50,000 and 10,000 images uint8 [n, 3, 32, 32]."""
        train, test = (self._part(root, names) for names in (self.train, self.test))
        return RawData(train, test, self.classes, self.mean, self.std)

    def _part(self, root: Path, names: tuple[str, ...]) -> Samples:
        return joined([self._batch(Source(root / self.folder / name, self.name)) for name in names])

    def _batch(self, source: Source) -> Samples:
        batch = load_dictionary(source)
        images = uint8_array(source, batch.get(b"data"))
        source.expect(images.shape[1:] == (3072,), "images of 3072 bytes", f"shape {list(images.shape)}")
        labels = batch.get(self.labels)
        if not isinstance(labels, list) or any(type(label) is not int for label in labels):
            raise source.damaged(f"a list of whole numbers as {self.labels.decode()}", type(labels).__name__)
        return source.samples(images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64), self.classes)


_TEN = _Kind(
    "cifar10",
    10,
    "cifar-10-batches-py",
    ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
    ("test_batch",),
    b"labels",
    (0.4914, 0.4822, 0.4465),
    (0.2470, 0.2435, 0.2616),
)
_HUNDRED = _Kind(
    "cifar100",
    100,
    "cifar-100-python",
    ("train",),
    ("test",),
    b"fine_labels",
    (0.5071, 0.4865, 0.4409),
    (0.2673, 0.2564, 0.2762),
)

CIFAR10 = Format("cifar10", _TEN.read, _TEN.files)
CIFAR100 = Format("cifar100", _HUNDRED.read, _HUNDRED.files)
