"""Partitions as properties: disjoint, complete, deterministic; and of the law they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cloister.data import partitioners
from cloister.data.raw import Samples
from cloister.errors import CloisterError


def labeled(count: int, classes: int = 10, seed: int = 0) -> Samples:
    labels = np.random.default_rng(seed).integers(0, classes, count)
    return Samples(np.zeros((count, 1)), labels, owners=np.array([f"w{i % 7}" for i in range(count)]))


MAKERS = {
    "iid": lambda clients, seed: partitioners.iid(clients, seed),
    "dirichlet": lambda clients, seed: partitioners.dirichlet(clients, 0.3, seed),
    "dirichlet_by_class": lambda clients, seed: partitioners.dirichlet_by_class(clients, 0.3, seed),
    "shards": lambda clients, seed: partitioners.shards(clients, 2, seed),
    "natural": lambda clients, seed: partitioners.natural(),
    "overlapping": lambda clients, seed: partitioners.overlapping(clients, seed),
}


def test_every_partition_is_tested():
    assert set(MAKERS) == set(partitioners.CATALOGUE)


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "overlapping"])
@settings(max_examples=40, deadline=None)
@given(count=st.integers(40, 300), clients=st.integers(1, 20), classes=st.integers(1, 12), seed=st.integers(0, 99))
def test_disjoint_complete_and_deterministic(name, count, clients, classes, seed):
    samples = labeled(count, classes, seed)
    client_rows = MAKERS[name](clients, seed).assign(samples)
    assert sorted(np.concatenate(client_rows).tolist()) == list(range(count))
    again = MAKERS[name](clients, seed).assign(samples)
    assert all(np.array_equal(a, b) for a, b in zip(client_rows, again, strict=True))
    if name != "natural":
        assert len(client_rows) == clients
    assert partitioners.most_copies(client_rows, count) == 1


@pytest.mark.parametrize("name", ["iid", "dirichlet"])
def test_equal_sizes(name):
    sizes = {len(own_rows) for own_rows in MAKERS[name](7, 1).assign(labeled(100))}
    assert sizes == {14, 15}


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "natural"])
def test_seeds_matter(name):
    first, second = (MAKERS[name](5, seed).assign(labeled(200)) for seed in (0, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def shares(client_rows, samples) -> np.ndarray:
    return np.array(
        [np.bincount(samples.labels[own_rows], minlength=10) / max(len(own_rows), 1) for own_rows in client_rows]
    )


@pytest.mark.parametrize("make", [partitioners.dirichlet, partitioners.dirichlet_by_class])
def test_alpha_governs_how_uneven_clients_are(make):
    samples = labeled(20_000)
    spread = [shares(make(50, alpha).assign(samples), samples).std(0).mean() for alpha in (0.1, 1.0, 100.0)]
    assert spread[0] > 1.5 * spread[1] > 3 * spread[2]


def test_dirichlet_class_shares_follow_the_dirichlet_law():
    """Of many samples and few clients, shares are the prior itself: Beta(alpha, 9 alpha) for each class."""
    samples = labeled(400_000)
    found = np.concatenate(
        [shares(partitioners.dirichlet(20, 1.0, seed).assign(samples), samples)[:, 0] for seed in range(12)]
    )
    # The pool runs dry for the last few, so the test is on the middle of the law and by a wide margin.
    assert stats.kstest(found, "beta", args=(1.0, 9.0)).statistic < 0.12
    assert stats.kstest(found, "beta", args=(5.0, 45.0)).statistic > 0.2


def test_shards_leave_few_labels_per_client():
    labels = np.repeat(np.arange(10), 600)
    client_rows = partitioners.shards(10, 4).assign(Samples(np.zeros((6000, 1)), labels))
    assert {len(own_rows) for own_rows in client_rows} == {600}
    kinds = [len(set(labels[own_rows])) for own_rows in client_rows]
    assert max(kinds) <= 4
    assert np.mean(kinds) > 2.5


def test_natural_clients_are_the_owners():
    samples = labeled(70)
    client_rows = partitioners.natural().assign(samples)
    assert [set(samples.owners[own_rows]) for own_rows in client_rows] == [{f"w{i}"} for i in range(7)]
    with pytest.raises(CloisterError, match="know their owners"):
        partitioners.natural().assign(Samples(np.zeros((3, 1)), np.zeros(3)))


def test_overlapping_is_marked_and_overlaps():
    made = partitioners.overlapping(10)
    assert made.overlapping
    client_rows = made.assign(labeled(1000))
    assert {len(own_rows) for own_rows in client_rows} == {100}
    assert all(len(set(own_rows)) == 100 for own_rows in client_rows), "without replacement within a client"
    assert partitioners.most_copies(client_rows, 1000) >= 4
    many = partitioners.overlapping(100).assign(labeled(1000))
    assert {len(own_rows) for own_rows in many} == {100}
    assert np.bincount(np.concatenate(many)).mean() == pytest.approx(10, abs=0.2)


def test_dirichlet_survives_a_class_that_runs_out():
    samples = Samples(np.zeros((100, 1)), np.array([0] * 97 + [1] * 3))
    client_rows = partitioners.dirichlet(10, 0.01).assign(samples)
    assert {len(own_rows) for own_rows in client_rows} == {10}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: partitioners.iid(0), "clients"),
        (lambda: partitioners.dirichlet(5, 0.0), "alpha > 0"),
        (lambda: partitioners.dirichlet_by_class(5, -1.0), "alpha > 0"),
        (lambda: partitioners.shards(5, 0), "per_client"),
        (lambda: partitioners.iid(50).assign(labeled(40)), "at most 40 parts"),
        (lambda: partitioners.shards(30, 2).assign(labeled(40)), "at most 40 parts"),
    ],
)
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(CloisterError, match=message):
        make()
