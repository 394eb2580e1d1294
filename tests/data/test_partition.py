from __future__ import annotations

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.core import Layout
from cloister.data.partition import partition_data
from cloister.data.raw import RawData, Samples
from cloister.errors import CloisterError
from cloister.runs.evaluate import scorer


def raw(owners: bool = False, train: int = 90, test: int = 30) -> RawData:
    random = np.random.default_rng(0)

    def part(count: int) -> Samples:
        names = np.array([f"w{i % 6}" for i in range(count)]) if owners else None
        return Samples(random.normal(size=(count, 4)).astype(np.float32), np.arange(count) % 3, names)

    return RawData(part(train), part(test), classes=3)


def test_every_sample_goes_to_the_client_that_the_partition_says():
    source, partition = raw(), cl.data.dirichlet(5, 0.5)
    task = partition_data(source, partition, "toy")
    for client, own_rows in enumerate(partition.assign(source.train)):
        start, size = int(task.population.starts[client]), int(task.population.sizes[client])
        assert torch.equal(
            task.population.inputs[start : start + size], torch.from_numpy(source.train.inputs[own_rows])
        )


def test_natural_clients_are_tested_on_their_own():
    source = raw(owners=True)
    rows, owners = partition_data(source, cl.data.natural(), "toy").local_test
    assert [f"w{o}" for o in owners.tolist()] == source.test.owners[rows.numpy()].tolist()
    assert len(rows) == 30


def test_test_owners_without_training_data_count_for_nobody():
    source = raw(owners=True)
    names = source.test.owners.copy()
    names[:5] = "stranger"
    task = partition_data(
        RawData(source.train, Samples(source.test.inputs, source.test.labels, names), 3), cl.data.natural(), "toy"
    )
    assert len(task.local_test[0]) == 25


def test_drawn_test_sets_have_the_clients_mix_of_labels():
    labels = np.repeat(np.arange(10), 100)
    source = RawData(
        Samples(np.zeros((1000, 1), np.float32), labels),
        Samples(np.zeros((500, 1), np.float32), np.arange(500) % 10),
        10,
    )
    partition = cl.data.shards(10, 2)
    task = partition_data(source, partition, "toy")
    rows, owners = task.local_test
    assert torch.bincount(owners).tolist() == [50] * 10
    for client, own_rows in enumerate(partition.assign(source.train)):
        mine = rows[owners == client]
        assert set(task.test_labels[mine].tolist()) == set(labels[own_rows])
        assert len(set(mine.tolist())) == len(mine)


def test_client_accuracy_is_the_unweighted_mean_over_clients():
    task = partition_data(raw(owners=True), cl.data.natural(), "toy")
    rows, owners = torch.arange(30), torch.tensor([0] * 20 + [1] * 8 + [4] * 2)
    task = type(task)(**{**vars(task), "local_test": (rows, owners)})
    net = torch.nn.Linear(4, 3)
    layout = Layout.of(net)
    w = layout.flatten(dict(net.named_parameters()))
    score = scorer(net, layout, task, w, batch_size=7)(w)
    hits = (net(task.test_inputs).argmax(1) == task.test_labels).double()
    assert score.accuracy == pytest.approx(float(hits.mean()))
    expected = (hits[:20].mean() + hits[20:28].mean() + hits[28:].mean()) / 3
    assert score.mean_client_accuracy == pytest.approx(float(expected))
    loss = torch.nn.functional.cross_entropy(net(task.test_inputs), task.test_labels).item()
    assert score.loss == pytest.approx(loss, rel=1e-6)


def test_overlap_is_counted_and_certified():
    task = partition_data(raw(), cl.data.overlapping(10), "toy")
    assert task.copies >= 2
    run = cl.run(
        cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, noise_multiplier=2.0),
        task,
        rounds=1,
        delta=1e-2,
        progress=False,
    )
    assert any("clients overlap" in gap for gap in run.certificate.not_covered)
    assert partition_data(raw(), cl.data.iid(10), "toy").copies == 1


def test_labels_out_of_range_are_refused():
    bad = RawData(raw().train, raw().test, classes=2)
    with pytest.raises(CloisterError, match="labels from 0 to 1, found 2"):
        partition_data(bad, cl.data.iid(3), "toy")


def test_one_client_is_tested_on_everything():
    task = partition_data(raw(), cl.data.iid(1), "toy")
    assert sorted(task.local_test[0].tolist()) == list(range(30))


def test_many_labels_per_sample_are_dealt_without_local_tests():
    part = Samples(np.zeros((6, 2), np.float32), np.arange(24).reshape(6, 4) % 3)
    assert (
        partition_data(RawData(part, part, 3), cl.data.iid(2), "toy", model=lambda: torch.nn.Linear(2, 3)).local_test
        is None
    )


def test_nothing_to_learn_from_is_refused():
    empty = Samples(np.zeros((0, 2), np.float32), np.zeros(0, np.int64))
    with pytest.raises(CloisterError, match="training samples"):
        partition_data(RawData(empty, empty, 3), cl.data.natural(), "toy")
