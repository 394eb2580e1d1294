"""Public data: training samples that are set aside before the rest is dealt, for methods that need some.

They are nobody's who takes part and none of the test set's: every training sample is either public or dealt.
"""

from __future__ import annotations

import hashlib

import numpy as np

from cloister.data.partitioners import Partition
from cloister.data.raw import Array, Samples
from cloister.data.splits import by_owner
from cloister.errors import expect, expect_count


def set_aside(train: Samples, public_samples: int, partition: Partition) -> tuple[Samples, Samples | None]:
    """The samples to deal, and the public ones; which they are follows from the partition's `split_seed`.

    Where clients are people (the natural partition), whole people are set aside, so that nobody is both public and a
    client. Where samples are dealt, exactly `public_samples` of them are, at random, whoever wrote them.
    """
    expect_count("public_samples", public_samples, "the number of training samples to set aside, 0 for none", least=0)
    if not public_samples:
        return train, None
    seed = int(partition.settings.get("split_seed", 0))
    if partition.name == "natural" and train.owners is not None:
        rows = rows_of_people(train.owners, public_samples, seed)
    else:
        expect(
            public_samples < len(train),
            f"public below {len(train)}, the training samples",
            public_samples,
            "leave some for the clients",
        )
        rows = np.random.default_rng([seed, 2]).permutation(len(train))[
            :public_samples
        ]  # [seed, 1] draws local test sets
    return _taken(train, others(rows, len(train))), _taken(train, rows)


def rows_of_people(owners: Array, public_samples: int, seed: int) -> Array:
    """The rows of so many whole owners, one after the other, that there are at least `public_samples` of them.

    Owners come in an order that only their names and the seed decide. So the public part follows from the public
    people's own data: whether somebody else takes part, and with what, changes nothing about it.
    """
    people = sorted(by_owner(owners), key=lambda one: hashlib.sha256(f"public/{seed}/{one[0]}".encode()).digest())
    needed = 1 + int(np.searchsorted(np.cumsum([len(rows) for _, rows in people]), public_samples))
    found = f"{public_samples}, which takes {min(needed, len(people))} of {len(people)} clients"
    expect(needed < len(people), "public to leave at least one client", found, "set fewer samples aside")
    return np.concatenate([rows for _, rows in people[:needed]])


def others(rows: Array, count: int) -> Array:
    """The rows from 0 to count - 1 that are not among the given ones, in order.

    >>> others(np.array([3, 0]), 5).tolist()
    [1, 2, 4]
    """
    return np.delete(np.arange(count), rows)


def _taken(samples: Samples, rows: Array) -> Samples:
    owners = None if samples.owners is None else samples.owners[rows]
    return Samples(samples.inputs[rows], samples.labels[rows], owners)
