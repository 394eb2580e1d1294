"""scikit-learn's digits: 1,797 real handwritten digits of 8x8 pixels, installed with scikit-learn.

E. Alpaydin & C. Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998
(CC BY 4.0); the copy in scikit-learn is its test part.
"""

from __future__ import annotations

import numpy as np

from cloister.data.task import Task, from_arrays
from cloister.errors import expect, expect_count


def digits(clients: int = 300, test: float = 0.2, split_seed: int = 0) -> Task:
    """The digits, a fifth held out for testing, the rest dealt at random into equal hands.

    >>> digits(clients=300).population.sizes.unique().tolist()
    [4, 5]
    """
    from sklearn.datasets import load_digits

    expect_count("clients", clients, "the number of clients among which the digits are dealt")
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    expect(0 < test < 1, "test to be a fraction between 0 and 1", test, "0.2 holds out a fifth")
    order = np.random.default_rng(split_seed).permutation(len(labels))
    held, kept = order[: round(test * len(labels))], order[round(test * len(labels)) :]
    expect(clients <= len(kept), f"at most {len(kept)} clients, one for every digit", clients, "ask for fewer")
    return from_arrays(
        images[kept],
        labels[kept],
        np.arange(len(kept)) % clients,
        test=(images[held], labels[held]),
        classes=10,
        name="digits",
    )
