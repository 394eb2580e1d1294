"""Partitions as properties: disjoint, complete, deterministic; and of the law they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cloister.data import partitions
from cloister.data.raw import Samples
from cloister.errors import CloisterError


def labelled(count: int, classes: int = 10, seed: int = 0) -> Samples:
    labels = np.random.default_rng(seed).integers(0, classes, count)
    return Samples(np.zeros((count, 1)), labels, owners=np.array([f"w{i % 7}" for i in range(count)]))


MAKERS = {
    "iid": lambda clients, seed: partitions.iid(clients, seed),
    "dirichlet": lambda clients, seed: partitions.dirichlet(clients, 0.3, seed),
    "dirichlet_by_class": lambda clients, seed: partitions.dirichlet_by_class(clients, 0.3, seed),
    "shards": lambda clients, seed: partitions.shards(clients, 2, seed),
    "natural": lambda clients, seed: partitions.natural(),
    "overlapping": lambda clients, seed: partitions.overlapping(clients, seed),
}


def test_every_partition_is_tested():
    assert set(MAKERS) == set(partitions.CATALOGUE)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "overlapping"])
@settings(max_examples=40, deadline=None)
@given(count=st.integers(40, 300), clients=st.integers(1, 20), classes=st.integers(1, 12), seed=st.integers(0, 99))
def test_disjoint_complete_and_deterministic(name, count, clients, classes, seed):
    samples = labelled(count, classes, seed)
    hands = MAKERS[name](clients, seed).deal(samples)
    assert sorted(np.concatenate(hands).tolist()) == list(range(count))
    again = MAKERS[name](clients, seed).deal(samples)
    assert all(np.array_equal(a, b) for a, b in zip(hands, again, strict=True))
    if name != "natural":
        assert len(hands) == clients
    assert partitions.most_copies(hands, count) == 1


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_equal_sizes(name):
    sizes = {len(hand) for hand in MAKERS[name](7, 1).deal(labelled(100))}
    assert sizes == {14, 15}


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "natural"])
def test_seeds_matter(name):
    first, second = (MAKERS[name](5, seed).deal(labelled(200)) for seed in (0, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def shares(hands, samples) -> np.ndarray:
    return np.array([np.bincount(samples.labels[hand], minlength=10) / max(len(hand), 1) for hand in hands])


@pytest.mark.parametrize("make", [partitions.dirichlet, partitions.dirichlet_by_class])
def test_alpha_governs_how_uneven_clients_are(make):
    samples = labelled(20_000)
    spread = [shares(make(50, alpha).deal(samples), samples).std(0).mean() for alpha in (0.1, 1.0, 100.0)]
    assert spread[0] > 1.5 * spread[1] > 3 * spread[2]


def test_dirichlet_class_shares_follow_the_dirichlet_law():
    """Of many samples and few clients, shares are the prior itself: Beta(alpha, 9 alpha) for each class."""
    samples = labelled(400_000)
    found = np.concatenate(
        [shares(partitions.dirichlet(20, 1.0, seed).deal(samples), samples)[:, 0] for seed in range(12)]
    )
    # The pool runs dry for the last few, so the test is on the middle of the law and by a wide margin.
    assert stats.kstest(found, "beta", args=(1.0, 9.0)).statistic < 0.12
    assert stats.kstest(found, "beta", args=(5.0, 45.0)).statistic > 0.2


def test_shards_leave_few_labels_per_client():
    labels = np.repeat(np.arange(10), 600)
    hands = partitions.shards(10, 4).deal(Samples(np.zeros((6000, 1)), labels))
    assert {len(hand) for hand in hands} == {600}
    kinds = [len(set(labels[hand])) for hand in hands]
    assert max(kinds) <= 4
    assert np.mean(kinds) > 2.5


def test_natural_clients_are_the_owners():
    samples = labelled(70)
    hands = partitions.natural().deal(samples)
    assert [set(samples.owners[hand]) for hand in hands] == [{f"w{i}"} for i in range(7)]
    with pytest.raises(CloisterError, match="know their owners"):
        partitions.natural().deal(Samples(np.zeros((3, 1)), np.zeros(3)))


def test_overlapping_is_marked_and_overlaps():
    made = partitions.overlapping(10)
    assert made.overlapping
    hands = made.deal(labelled(1000))
    assert {len(hand) for hand in hands} == {100}
    assert all(len(set(hand)) == 100 for hand in hands), "without replacement within a client"
    assert partitions.most_copies(hands, 1000) >= 4
    many = partitions.overlapping(100).deal(labelled(1000))
    assert {len(hand) for hand in many} == {100}
    assert np.bincount(np.concatenate(many)).mean() == pytest.approx(10, abs=0.2)


def test_dirichlet_survives_a_class_that_runs_out():
    samples = Samples(np.zeros((100, 1)), np.array([0] * 97 + [1] * 3))
    hands = partitions.dirichlet(10, 0.01).deal(samples)
    assert {len(hand) for hand in hands} == {10}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: partitions.iid(0), "clients"),
        (lambda: partitions.dirichlet(5, 0.0), "alpha > 0"),
        (lambda: partitions.dirichlet_by_class(5, -1.0), "alpha > 0"),
        (lambda: partitions.shards(5, 0), "per_client"),
        (lambda: partitions.iid(50).deal(labelled(40)), "at most 40 parts"),
        (lambda: partitions.shards(30, 2).deal(labelled(40)), "at most 40 parts"),
    ],
)
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(CloisterError, match=message):
        make()
