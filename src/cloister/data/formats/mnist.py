"""MNIST and what shares its files' form: Fashion-MNIST.

Y. LeCun, C. Cortes & C. Burges, "The MNIST database of handwritten digits", 1998; H. Xiao, K. Rasul & R. Vollgraf,
"Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms", arXiv 1708.07747, 2017.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cloister.data.formats.format import Format
from cloister.data.formats.idx import read_images, read_labels
from cloister.data.formats.source import Source, packed
from cloister.data.raw import RawData

MEAN, STD = (0.1307,), (0.3081,)


def files(root: Path, folder: str = "MNIST") -> list[Path]:
    """Images and labels of the training part, then of the test part."""
    parts = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    return [packed(root / folder / "raw" / name) for name in parts]


def read(
    root: Path, *, name: str = "mnist", folder: str = "MNIST", mean: tuple[float] = MEAN, std: tuple[float] = STD
) -> RawData:
    """60,000 and 10,000 images uint8 [n, 1, 28, 28] of ten classes."""
    sources = [Source(path, name) for path in files(root, folder)]
    train, test = (
        labels.samples(read_images(images), read_labels(labels), 10) for images, labels in (sources[:2], sources[2:])
    )
    return RawData(train, test, 10, mean, std)


def _read_mnist(root: Path) -> RawData:
    return read(root)


def _read_fashion(root: Path) -> RawData:
    return read(root, name="fashion_mnist", folder="FashionMNIST", mean=(0.2860,), std=(0.3530,))


MNIST = Format("mnist", _read_mnist, files)
FASHION_MNIST = Format("fashion_mnist", _read_fashion, partial(files, folder="FashionMNIST"))
