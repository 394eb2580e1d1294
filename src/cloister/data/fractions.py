"""A fraction of a data set: fewer samples, the same ones for the same seed, whatever is in them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from cloister.data.partitioners import Partition
from cloister.data.raw import Array, RawData, Samples
from cloister.data.splits import by_owner, held_out
from cloister.errors import expect_probability


def fraction_of(raw: RawData, fraction: float, partition: Partition) -> RawData:
    """The data set with that fraction of its training samples and of its test samples, in their order.

    Which they are follows from the partition's `split_seed` and from numbers of samples, never from what is in one:
    with another sample in one place, every other one stays or goes as before. Where samples are dealt, there are as
    many as the fraction says, rounded half up. Where clients are people (the natural partition), everybody keeps a
    fraction of their own, rounded up or down by chance and at least one, so that nobody's samples depend on who else is
    there.
    """
    expect_probability("fraction", fraction, "1 uses all samples, and 0.2 a fifth of them")
    if fraction == 1:
        return raw
    seed = int(partition.settings.get("split_seed", 0))
    own = partition.name == "natural"
    return replace(raw, train=_some(raw.train, fraction, seed, 3, own), test=_some(raw.test, fraction, seed, 4, own))


def count_of(samples: int, fraction: float) -> int:
    """How many of so many dealt samples a fraction is: rounded half up, and at least one.

    A fifth of EMNIST's 62 classes, and the fraction whose sizes are those that DP-FedSAM's paper prints:

    >>> [count_of(n, 0.2) for n in (697_932, 116_323)], [count_of(n, 0.127233) for n in (697_932, 116_323)]
    ([139586, 23265], [88800, 14800])
    """
    return max(1, math.floor(round(fraction * samples, 6) + 0.5))


def _some(samples: Samples, fraction: float, seed: int, stream: int, own: bool) -> Samples:
    if not len(samples):
        return samples
    if own and samples.owners is not None:
        rows = _of_everybody(samples.owners, fraction, seed, stream)
    else:  # [seed, 1] draws local test sets, [seed, 2] public samples
        drawn = np.random.default_rng([seed, stream]).permutation(len(samples))
        rows = np.sort(drawn[: count_of(len(samples), fraction)])
    owners = None if samples.owners is None else samples.owners[rows]
    return Samples(samples.inputs[rows], samples.labels[rows], owners)


def _of_everybody(owners: Array, fraction: float, seed: int, stream: int) -> Array:
    """Rows of every owner: what `held_out` does not hold out, which is never everything."""
    kept = [
        rows[~held_out(f"fraction/{stream}/{owner}", len(rows), seed, 1 - fraction)] for owner, rows in by_owner(owners)
    ]
    return np.sort(np.concatenate(kept))
