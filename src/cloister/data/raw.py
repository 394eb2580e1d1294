"""A data set as its files hold it: arrays, before anybody deals them to clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Samples:
    """Inputs [n, ...] (images: uint8, channels first), labels [n] (int64), and whose sample each one is, if known."""

    inputs: Array
    labels: Array
    owners: Array | None = None

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class RawData:
    """A training part and a test part. `mean` and `std` per channel turn stored inputs/255 into what models like.

    They are published constants, never computed from what was read. `prepared_by` says what a training sample was
    computed from beside such constants: itself alone, or (where a statistic of theirs went into it) all samples of its
    owner. Anything wider has no place here: one client's data would reach another's.
    """

    train: Samples
    test: Samples
    classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    prepared_by: Literal["sample", "owner"] = "sample"
