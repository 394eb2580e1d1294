"""Putting parts together, and making a test part where none was published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from cloister.data.raw import Array, Samples


def joined(parts: Sequence[Samples]) -> Samples:
    """One after the other."""
    owners = [part.owners for part in parts if part.owners is not None]
    return Samples(
        np.concatenate([part.inputs for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate(owners) if owners else None,
    )


def held_out(owner: object, count: int, seed: int, fraction: float = 0.2) -> Array:
    """Which of an owner's `count` samples to hold out: a mask, the fraction up to rounding by batch, never all of them.

    It follows from the seed, the owner and the count. So no owner's split depends on anybody else's data, and none on
    what is in a sample: with another one in its place, or with that place left empty, every other sample stays on its
    side. (A guarantee for single samples is for declared counts: a sample that is removed keeps its place among them.)

    >>> int(held_out("ann", 10, seed=0).sum())
    2
    """
    digest = hashlib.sha256(f"{seed}/{owner}".encode()).digest()
    random = np.random.default_rng(list(digest))
    number = min(int(fraction * count + random.random()), max(count - 1, 0))
    mask = np.zeros(count, dtype=bool)
    mask[random.permutation(count)[:number]] = True
    return mask


def numbered(owners: Array) -> tuple[Array, Array]:
    """The different owners in order, and the number of each row's.

    Rows of one owner mostly lie together, and only where the owner changes are names compared and sorted: a million of
    them would take seconds.

    >>> names, numbers = numbered(np.array(["zoe", "zoe", "abe", "zoe"]))
    >>> names.tolist(), numbers.tolist()
    (['abe', 'zoe'], [1, 1, 0, 1])
    """
    begins = np.flatnonzero(np.append(True, owners[1:] != owners[:-1])[: len(owners)])
    names, numbers = np.unique(owners[begins], return_inverse=True)
    return names, np.repeat(numbers, np.diff(np.append(begins, len(owners))))


def by_owner(owners: Array) -> Iterator[tuple[object, Array]]:
    """Every owner with the rows that are theirs, in order."""
    names, owner = numbered(owners)
    order = np.argsort(owner, kind="stable")
    cuts = np.cumsum(np.bincount(owner, minlength=len(names)))[:-1]
    yield from zip(names.tolist(), np.split(order, cuts) if len(names) else [], strict=True)


def train_and_test(samples: Samples, seed: int) -> tuple[Samples, Samples]:
    """The samples in two parts, a fifth of every owner's in the second."""
    owners = np.asarray(samples.owners)
    test = np.zeros(len(samples), dtype=bool)
    for owner, rows in by_owner(owners):
        test[rows[held_out(owner, len(rows), seed)]] = True
    first, second = (Samples(samples.inputs[m], samples.labels[m], owners[m]) for m in (~test, test))
    return first, second
