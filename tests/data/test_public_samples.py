"""Public data is set aside before anything is dealt: nobody's who takes part, and none of the test set's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.data import RawData, Samples, Task, partition_data
from cloister.data.public_samples import rows_of_people, set_aside
from cloister.errors import CloisterError
from cloister.runs.signatures import introspected

DEALT = {
    "iid": lambda seed=0: cl.data.iid(8, seed),
    "dirichlet": lambda seed=0: cl.data.dirichlet(8, 0.5, seed),
    "dirichlet_by_class": lambda seed=0: cl.data.dirichlet_by_class(8, 0.5, seed),
    "shards": lambda seed=0: cl.data.shards(8, 2, seed),
    "overlapping": lambda seed=0: cl.data.overlapping(8, seed),
}


def raw(train: int = 120, test: int = 30, people: int = 12) -> RawData:
    """Every sample's first number is its own, so that samples can be told apart; people have unequally many."""
    random = np.random.default_rng(0)
    names = np.array([f"w{i:02}" for i in range(people)])
    share = np.arange(5, 5 + people) / np.arange(5, 5 + people).sum()

    def part(first: int, count: int) -> Samples:
        inputs = random.normal(size=(count, 4)).astype(np.float32)
        inputs[:, 0] = np.arange(first, first + count)
        owners = np.concatenate([names, random.choice(names, count - people, p=share)])
        return Samples(inputs, np.arange(count) % 3, owners)

    return RawData(part(0, train), part(10_000, test), classes=3)


def ids(inputs: torch.Tensor) -> list[int]:
    return inputs[:, 0].long().tolist()


def public_ids(task: Task) -> list[int]:
    assert task.public_samples is not None
    return ids(task.public_samples[0])


@pytest.mark.parametrize("name", DEALT)
def test_samples_that_are_dealt_are_public_or_a_clients_but_never_both(name):
    source = raw()
    task = partition_data(source, DEALT[name](), "toy", public_samples=23)
    known, dealt = public_ids(task), ids(task.population.inputs)
    assert len(known) == len(set(known)) == 23
    assert not set(known) & set(dealt)
    if name != "overlapping":  # there, some samples go to nobody at all
        assert sorted(known + dealt) == list(range(120))
    assert task.clients == 8
    assert task.public_samples[1].tolist() == source.train.labels[known].tolist(), "labels stay with their inputs"
    assert torch.equal(task.test_inputs, torch.from_numpy(source.test.inputs)), "the test set is left alone"


def test_public_people_are_no_clients():
    source = raw()
    task = partition_data(source, cl.data.natural(), "toy", public_samples=23)
    known, dealt = public_ids(task), ids(task.population.inputs)
    assert sorted(known + dealt) == list(range(120))
    people, others = set(source.train.owners[known]), set(source.train.owners[dealt])
    assert people
    assert not people & others
    assert task.clients == len(others) == 12 - len(people)
    last = source.train.owners[known[-1]]
    without_last = sum(source.train.owners[row] != last for row in known)
    assert without_last < 23 <= len(known), "no more people than it takes"


def test_the_clients_that_are_left_keep_their_own_test_samples():
    source = raw()
    task = partition_data(source, cl.data.natural(), "toy", public_samples=23)
    left = sorted(set(source.train.owners[ids(task.population.inputs)]))
    rows, owners = task.local_test
    assert [left[owner] for owner in owners.tolist()] == source.test.owners[rows.numpy()].tolist()
    assert len(rows) == sum(owner in left for owner in source.test.owners) < 30


def test_known_owners_do_not_matter_where_samples_are_dealt():
    assert len(public_ids(partition_data(raw(), cl.data.iid(8), "toy", public_samples=1))) == 1


@pytest.mark.parametrize("make", [*DEALT.values(), cl.data.natural])
def test_which_samples_follows_from_the_seed_alone(make):
    chosen = [public_ids(partition_data(raw(), make(split_seed), "toy", public_samples=20)) for split_seed in (3, 3, 4)]
    assert chosen[0] == chosen[1]
    assert set(chosen[0]) != set(chosen[2])


@pytest.mark.parametrize("make", [*DEALT.values(), cl.data.natural])
def test_without_public_data_everything_is_dealt_as_ever(make):
    source, partition = raw(), make()
    task = partition_data(source, partition, "toy", public_samples=0)
    assert task.public_samples is None
    assert ids(task.population.inputs) == np.concatenate(partition.assign(source.train)).tolist()
    assert set_aside(source.train, 0, partition)[0] is source.train


def test_everybody_is_public_for_some_seed():
    owners = raw().train.owners
    found = [set(owners[rows_of_people(owners, 1, seed)]) for seed in range(200)]
    assert all(len(people) == 1 for people in found)
    assert set.union(*found) == set(owners), "twelve people and 200 draws: one is missed in 3 of 10 million"


def test_who_is_public_does_not_depend_on_who_else_takes_part():
    """The guarantee is for a client: its presence must not show in the public data."""
    owners = raw().train.owners
    rows = rows_of_people(owners, 23, seed=0)
    for client in set(owners) - set(owners[rows]):
        gone = np.flatnonzero(owners != client)
        assert gone[rows_of_people(owners[gone], 23, seed=0)].tolist() == rows.tolist()
        larger = np.concatenate([owners, [client] * 50])
        assert rows_of_people(larger, 23, seed=0).tolist() == rows.tolist()


def test_the_fingerprint_covers_public_data():
    task = partition_data(raw(), cl.data.iid(8), "toy", public_samples=23)
    inputs, labels = task.public_samples
    others = [None, (inputs + 1, labels), (inputs, (labels + 1) % 3), (inputs[:-1], labels[:-1])]
    prints = {
        replace(task, public_samples=public_samples).fingerprint() for public_samples in [task.public_samples, *others]
    }
    assert len(prints) == 5
    assert replace(task).fingerprint() == task.fingerprint()


@pytest.mark.parametrize(
    ("partition", "public_samples", "message"),
    [
        (cl.data.iid(8), 120, "public below 120, the training samples, found 120: leave some for the clients"),
        (cl.data.iid(8), 113, "at most 7 parts"),
        (cl.data.natural(), 120, "at least one client, found '120, which takes 12 of 12 clients'"),
        (cl.data.natural(), 10**6, "which takes 12 of 12 clients"),
        (cl.data.iid(8), -1, "public_samples to be a whole number of at least 0"),
        (cl.data.iid(8), 0.5, "public_samples to be a whole number"),
        (cl.data.iid(8), True, "public_samples to be a whole number"),
    ],
)
def test_what_leaves_too_little_is_refused(partition, public_samples, message):
    with pytest.raises(CloisterError, match=message):
        partition_data(raw(), partition, "toy", public_samples=public_samples)


def test_as_much_as_possible_is_not_refused():
    assert partition_data(raw(), cl.data.iid(1), "toy", public_samples=119).population.sizes.tolist() == [1]
    owners = np.repeat(["ann", "bob", "cy"], 4)
    assert len(rows_of_people(owners, 4, seed=0)) == 4
    assert len(rows_of_people(owners, 8, seed=0)) == 8
    with pytest.raises(CloisterError, match="found '9, which takes 3 of 3 clients'"):
        rows_of_people(owners, 9, seed=0)


def test_bad_public_labels_are_refused():
    source = raw()
    _, aside = set_aside(source.train, 20, cl.data.iid(8))
    labels = source.train.labels.copy()
    labels[int(aside.inputs[3, 0])] = 7
    with pytest.raises(CloisterError, match="public labels from 0 to 2, found 7 in row 3"):
        partition_data(
            replace(source, train=replace(source.train, labels=labels)), cl.data.iid(8), "toy", public_samples=20
        )


@pytest.mark.parametrize("name", cl.data.CATALOGUE)
def test_every_set_has_the_key(name):
    key = next(key for key in introspected().keys_of("data", name) if key.name == "public_samples")
    assert (key.default, key.kind) == (0, int)


@pytest.mark.parametrize("name", sorted(set(cl.data.CATALOGUE) - {"digits"}))
def test_every_set_sets_aside(name, monkeypatch):
    random = np.random.default_rng(0)
    pictures = name not in ("har", "heart", "shakespeare")

    def part(count: int) -> Samples:
        inputs = random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        plain = random.normal(size=(count, 5)).astype(np.float32)
        return Samples(inputs if pictures else plain, np.arange(count) % 3, np.arange(count) // 4)

    source = RawData(part(40), part(8), 3, (0.5,), (0.5,))
    monkeypatch.setattr("cloister.data.datasets._read", lambda *names, **options: source)
    dealt = cl.data.CATALOGUE[name](partition=cl.data.iid(5), public_samples=10)
    assert len(dealt.public_samples[1]) == 10
    assert dealt.public_samples[0].dtype == dealt.population.inputs.dtype, "raw, like the clients'"
    people = cl.data.CATALOGUE[name](partition=cl.data.natural(), public_samples=10)
    assert (people.clients, len(people.public_samples[1])) == (7, 12)
    assert dealt.preprocessing.test(dealt.public_samples[0], torch.float32).shape[1:] == dealt.shape


def test_scattering_features_can_be_public(monkeypatch):
    part = Samples(np.random.default_rng(0).normal(size=(20, 81, 7, 7)).astype(np.float32), np.arange(20) % 10)
    monkeypatch.setattr("cloister.data.datasets._read", lambda *names, **options: RawData(part, part, 10))
    task = cl.data.mnist(cl.data.iid(4), features="scatter", public_samples=6)
    assert task.public_samples[0].shape == (6, 81, 7, 7)


def test_public_digits_and_their_neighbors():
    task = cl.data.digits(clients=300, public_samples=100)
    assert (task.clients, len(task.public_samples[1]), int(task.population.sizes.sum())) == (300, 100, 1797 - 359 - 100)
    assert torch.equal(task.test_inputs, cl.data.digits().test_inputs)
    with pytest.raises(CloisterError, match="at most 238 parts"):
        cl.data.digits(clients=300, public_samples=1200)


def test_the_key_reaches_the_data():
    from cloister.runs.config import build_task

    task, _ = build_task({"data": "digits", "public_samples": 50})
    assert len(task.public_samples[1]) == 50
    assert build_task({"data": "digits"})[0].public_samples is None


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source = raw()
    return source.train.inputs, source.train.labels, source.train.owners


def test_own_public_data():
    x, y, who = arrays()
    task = cl.data.from_arrays(x, y, who, public_samples=(x[:4] + 0.5, np.array([0, 1, 2, 5], np.uint8)))
    assert torch.equal(task.public_samples[0], torch.from_numpy(x[:4] + 0.5))
    assert (task.public_samples[1].dtype, task.classes, task.clients) == (torch.int64, 6, 12)
    without = cl.data.from_arrays(x, y, who)
    assert without.public_samples is None
    assert torch.equal(task.population.inputs, without.population.inputs)


@pytest.mark.parametrize("test", [0.2, "given"])
def test_own_clients_are_set_aside_whole(test):
    x, y, who = arrays()
    given = (raw().test.inputs, raw().test.labels) if test == "given" else test
    task = cl.data.from_arrays(x, y, who, public_samples=23, test=given)
    known, dealt, tested = public_ids(task), ids(task.population.inputs), ids(task.test_inputs)
    assert len(known) >= 23
    assert not set(known) & set(dealt + tested)
    assert not set(who[known]) & set(who[dealt])
    assert sorted(known + dealt + (tested if test == 0.2 else [])) == list(range(120))
    assert task.public_samples[1].tolist() == y[known].tolist()
    assert task.clients == 12 - len(set(who[known]))
    if test == 0.2:
        left = sorted(set(who[dealt]))
        assert [left[client] for client in task.local_test[1].tolist()] == who[tested].tolist()


def test_registered_clients_without_samples_stay(tmp_path):
    x, y, who = arrays()
    assert cl.data.from_arrays(x, y, who, public_samples=1, registered=20).clients == 19
    for name in sorted(set(who)):
        np.savez(tmp_path / f"{name}.npz", inputs=x[who == name], labels=y[who == name])
    task = cl.data.from_folder(tmp_path, public_samples=23)
    assert sorted(public_ids(task)) == sorted(public_ids(cl.data.from_arrays(x, y, who, public_samples=23)))


@pytest.mark.parametrize(
    ("public_samples", "message"),
    [
        (120, "at least one client"),
        (-3, "public_samples to be a whole number"),
        (
            0.2,
            "public_samples to be a whole number of at least 0, found 0.2: the number of samples to set aside, or give",
        ),
        (None, "public_samples to be a whole number"),
        ((np.zeros((2, 9)), np.zeros(2, int)), r"public inputs of shape \(4,\), found \(9,\)"),
        ((np.zeros((2, 4)), np.zeros(3, int)), "as many public labels as public inputs"),
        ((np.zeros((2, 4)), np.zeros(2)), "public labels to be whole numbers"),
        ((np.zeros((2, 4)), np.array([0, -1])), "public labels from 0 to 2, found -1"),
        ((np.zeros((0, 4)), np.zeros(0, int)), "at least one public sample"),
        ((np.zeros((2, 4)),), r"public to be \(inputs, labels\)"),
    ],
)
def test_bad_own_public_data_is_refused(public_samples, message):
    with pytest.raises(CloisterError, match=message):
        cl.data.from_arrays(*arrays(), public_samples=public_samples)


def test_show_counts_public_samples(tmp_path, monkeypatch, capsys):
    from cloister.cli.app import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cloister", "data", "show", "digits", "public_samples=37", "clients=5"])
    with pytest.raises(SystemExit):
        main()
    assert "public: 37 samples" in capsys.readouterr().out
