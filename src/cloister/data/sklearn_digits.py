"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels, installed with scikit-learn.

E. Alpaydin & C. Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998
(CC BY 4.0); the copy in scikit-learn is its test part.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from cloister.data.arguments import Clients, Fraction, Public
from cloister.data.partition import partition_data
from cloister.data.partitioners import Partition, iid
from cloister.data.raw import RawData, Samples
from cloister.data.task import Task
from cloister.errors import expect


def digits(
    clients: Clients = 300,
    test_fraction: Annotated[float, "fraction of the samples held out for testing"] = 0.2,
    partition: Partition | None = None,
    public_samples: Public = 0,
    fraction: Fraction = 1.0,
) -> Task:
    """The digits, a fifth held out for testing, the rest dealt at random into equal hands (but for `public_samples` of
    them).

    >>> digits(clients=300).population.sizes.unique().tolist()
    [4, 5]
    """
    from sklearn.datasets import load_digits

    expect(
        0 < test_fraction < 1, "test_fraction to be a fraction between 0 and 1", test_fraction, "0.2 holds out a fifth"
    )
    data = load_digits()
    images, labels = (data.images / 16).astype(np.float32)[:, None], data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    held, kept = order[: round(test_fraction * len(labels))], order[round(test_fraction * len(labels)) :]
    raw = RawData(Samples(images[kept], labels[kept]), Samples(images[held], labels[held]), classes=10)
    return partition_data(raw, partition or iid(clients), "digits", public_samples=public_samples, fraction=fraction)
