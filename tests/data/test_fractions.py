"""A fraction of a data set: as many samples as it says, by the seed alone, and nobody's depend on anybody else's."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cloister as cl
from cloister.data.fractions import count_of, fraction_of
from cloister.data.partition import partition_data
from cloister.data.raw import RawData, Samples
from cloister.errors import CloisterError


def raw(train: int = 120, test: int = 40, owners: bool = False, seed: int = 0) -> RawData:
    """Samples that can be told apart by their input, which is their row number."""
    random = np.random.default_rng(seed)

    def part(count: int, first: int) -> Samples:
        rows = np.arange(first, first + count, dtype=np.float32)[:, None]
        names = np.array([f"p{n}" for n in np.sort(random.integers(0, 9, count))]) if owners else None
        return Samples(rows, random.integers(0, 3, count), names)

    return RawData(part(train, 0), part(test, 1000), 3)


def rows_of(samples: Samples) -> list[int]:
    return samples.inputs[:, 0].astype(int).tolist()


@given(n=st.integers(1, 10**6), hundredths=st.integers(1, 100))
def test_sizes_are_the_fraction_rounded_half_up(n, hundredths):
    exact = Fraction(hundredths, 100) * n
    assert count_of(n, hundredths / 100) == max(1, math.floor(exact + Fraction(1, 2)))


def test_the_sizes_that_dp_fedsam_prints_follow_from_no_fifth_but_from_fractions_that_are_named():
    """EMNIST (Cohen et al. 2017, and its files): by class, balanced, letters of today and as first published."""
    splits = {"byclass": (697_932, 116_323), "balanced": (112_800, 18_800), "letters": (124_800, 20_800)}
    printed = (88_800, 14_800)
    for sizes in splits.values():
        assert tuple(count_of(n, 0.2) for n in sizes) != printed
    assert tuple(count_of(n, 0.2) for n in splits["byclass"]) == (139_586, 23_265)
    assert tuple(count_of(n, 0.127233) for n in splits["byclass"]) == printed
    assert tuple(count_of(n, 0.711538) for n in splits["letters"]) == printed


def test_training_and_test_shrink_alike_and_stay_in_order_without_repetition():
    source, partition = raw(), cl.data.iid(5)
    found = fraction_of(source, 0.2, partition)
    assert (len(found.train), len(found.test)) == (24, 8)
    for part, whole in ((found.train, source.train), (found.test, source.test)):
        rows = rows_of(part)
        assert rows == sorted(set(rows))
        assert set(rows) < set(rows_of(whole))
        first = rows_of(whole)[0]
        assert part.labels.tolist() == [int(whole.labels[row - first]) for row in rows]
    task = partition_data(source, partition, "toy", fraction=0.2)
    assert sorted(task.population.inputs[:, 0].int().tolist()) == rows_of(found.train)
    assert task.test_inputs[:, 0].int().tolist() == rows_of(found.test)


def test_all_of_it_is_what_there_was_before():
    source = raw()
    assert fraction_of(source, 1.0, cl.data.iid(5)) is source
    before, after = (partition_data(source, cl.data.iid(5), "toy", **more) for more in ({}, {"fraction": 1.0}))
    assert torch.equal(before.population.inputs, after.population.inputs)
    assert before.fingerprint() == after.fingerprint()


def test_the_seed_decides_and_what_is_in_a_sample_does_not():
    chosen = [rows_of(fraction_of(raw(), 0.3, cl.data.iid(5, seed)).train) for seed in (3, 3, 4)]
    assert chosen[0] == chosen[1] != chosen[2]
    other = raw()
    other.train.labels[:] = 0
    assert rows_of(fraction_of(other, 0.3, cl.data.iid(5, 3)).train) == chosen[0]
    by_label = fraction_of(other, 0.3, cl.data.dirichlet(5, 0.5, 3))
    assert rows_of(by_label.train) == chosen[0], "also where labels decide who gets what"


def test_rows_are_drawn_evenly():
    """Each of 40 rows is in about a fifth of 2,000 draws: within 7 deviations, which half as many would not be."""
    seen = Counter(
        row for seed in range(2000) for row in rows_of(fraction_of(raw(40), 0.2, cl.data.iid(2, seed)).train)
    )
    deviation = math.sqrt(2000 * 0.2 * 0.8)
    assert all(abs(seen[row] - 400) < 7 * deviation for row in range(40))
    assert 400 - 7 * deviation > 200


@pytest.mark.parametrize("fraction", [0.05, 0.3, 0.9])
def test_natural_clients_keep_a_fraction_of_their_own_whoever_else_is_there(fraction):
    source, partition = raw(owners=True), cl.data.natural()
    found = fraction_of(source, fraction, partition)
    sizes, before = Counter(found.train.owners.tolist()), Counter(source.train.owners.tolist())
    assert set(sizes) == set(before), "nobody is left out"
    for name, count in before.items():
        assert sizes[name] in {max(1, math.floor(fraction * count)), max(1, math.ceil(fraction * count))}
    gone = source.train.owners != "p3"
    without = RawData(
        Samples(source.train.inputs[gone], source.train.labels[gone], source.train.owners[gone]), source.test, 3
    )
    others = [row for row, name in zip(rows_of(found.train), found.train.owners.tolist(), strict=True) if name != "p3"]
    assert rows_of(fraction_of(without, fraction, partition).train) == others


@pytest.mark.parametrize("wrong", [0.0, -0.1, 1.1, math.nan, "all", True])
def test_what_is_no_fraction_is_refused(wrong):
    with pytest.raises(CloisterError, match="fraction"):
        cl.data.digits(fraction=wrong)


def test_a_run_on_a_fraction_of_the_digits():
    task = cl.data.digits(clients=10, fraction=0.2)
    whole = cl.data.digits(clients=10)
    assert len(task.population.labels) == count_of(len(whole.population.labels), 0.2)
    assert len(task.test_labels) == count_of(len(whole.test_labels), 0.2)
    assert task.fingerprint() != whole.fingerprint(), "so that the two never share their noise"
    cl.run(cl.methods.fedavg(local_steps=1), task, rounds=1, progress=False)
