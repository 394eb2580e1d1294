"""Federated EMNIST as TensorFlow Federated publishes it: 3,400 writers, HDF5.

One file per part; in it, `examples/<client>/pixels` are floats [n, 28, 28] from 0 to 1, where 1 is the white of the
paper, and `examples/<client>/label` whole numbers. The images are turned to ink on black, as MNIST's are.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from cloister.data.formats.format import Format
from cloister.data.formats.source import Source
from cloister.data.raw import RawData, Samples
from cloister.data.splits import joined
from cloister.errors import expect_package


def files(root: Path, only_digits: bool = False) -> list[Path]:
    """The file of the training part and that of the test part."""
    kind = "fed_emnist_digitsonly" if only_digits else "fed_emnist"
    return [root / "fed_emnist" / f"{kind}_{part}.h5" for part in ("train", "test")]


def read(root: Path, only_digits: bool = False) -> RawData:
    """Images uint8 [n, 1, 28, 28] of 62 classes (0-9, A-Z, a-z) or ten digits, owned by the writers' names."""
    classes = 10 if only_digits else 62
    train, test = (_part(Source(path, "fed_emnist"), classes) for path in files(root, only_digits))
    return RawData(train, test, classes, (0.0363,), (0.1592,))


def _part(source: Source, classes: int) -> Samples:
    if not source.path.is_file():
        raise source.missing()
    h5py = _h5py()
    try:
        with h5py.File(source.path, "r") as file:
            clients = {name: (group["pixels"][()], group["label"][()]) for name, group in file["examples"].items()}
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise source.damaged("HDF5 with examples/<client>/pixels and label", f"something else ({error})") from error
    source.expect(len(clients) > 0, "at least one client", "none")
    parts = []
    for name, (pixels, labels) in clients.items():
        paper = source.pixels(np.asarray(pixels))
        parts.append(source.samples(255 - paper, np.asarray(labels), classes, np.full(len(paper), name)))
    return joined(parts)


def _h5py() -> Any:
    expect_package("h5py", "to read .h5", "hdf5")
    return importlib.import_module("h5py")


FED_EMNIST = Format("fed_emnist", read, files)
