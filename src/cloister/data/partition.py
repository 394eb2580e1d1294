"""From a data set and a partition to a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from cloister.client.population import Population
from cloister.client.preprocessing import Preprocessing, plain
from cloister.data.fractions import fraction_of
from cloister.data.labels import expect_classes, expect_different
from cloister.data.partitioners import ClientRows, Partition, most_copies
from cloister.data.public_samples import set_aside
from cloister.data.raw import Array, RawData, Samples
from cloister.data.task import Task
from cloister.errors import expect
from cloister.models import logistic


def partition_data(
    raw: RawData,
    partition: Partition,
    name: str,
    preprocessing: Preprocessing | None = None,
    model: Callable[[], nn.Module] | None = None,
    public_samples: int = 0,
    fraction: float = 1.0,
) -> Task:
    """Deal the training part to clients; give each client a test set of its own kind out of the test part.

    With a `fraction`, so many of the training and of the test samples are used (`fractions.py`). Before they are dealt,
    `public_samples` training samples are set aside as public data, disjoint from the test part and from every client's
    samples; of natural clients, whole ones until there are as many, so that so many fewer are left.

    Who gets which sample, and which are public, goes by numbers of samples and by owners, never by what is in a sample
    (but for the labels that a label-dependent partition looks at). The test sets of clients that have none of their own
    are drawn by labels of training samples; they are for looking at, and nothing that is trained depends on them.
    """
    expect(len(raw.train) > 0, f"{name} to have training samples", 0, "its files or options leave none")
    whole = partition.name == "natural" or raw.prepared_by == "sample"
    remedy = "one client's data would be in another's samples, so use impute = public"
    expect(whole, "the natural partition of samples that statistics of their owner went into", partition.name, remedy)
    raw = fraction_of(raw, fraction, partition)
    train, aside = set_aside(raw.train, public_samples, partition)
    raw = replace(raw, train=train)
    client_rows = partition.assign(raw.train)
    order = np.concatenate(client_rows)
    sizes = torch.tensor([len(own_rows) for own_rows in client_rows])
    inputs, labels = _rows(raw.train.inputs, order), _rows(raw.train.labels, order).long()
    test_inputs, test_labels = _rows(raw.test.inputs), _rows(raw.test.labels).long()
    for what, values in (("labels", labels), ("test labels", test_labels)):
        expect_classes(what, values, raw.classes)
    expect_different(labels, test_labels)
    known = None
    if aside is not None:
        known = _rows(aside.inputs), _rows(aside.labels).long()
        expect_classes("public labels", known[1], raw.classes)
    preprocessing = preprocessing or plain()
    shape = tuple(preprocessing.test(inputs[:1], torch.float32).shape[1:])
    return Task(
        name=name,
        population=Population(inputs, labels, sizes.cumsum(0) - sizes, sizes),
        test_inputs=test_inputs,
        test_labels=test_labels,
        classes=raw.classes,
        model=model or partial(logistic, shape, raw.classes),
        preprocessing=preprocessing,
        local_test=_local_test(raw, partition, client_rows),
        copies=most_copies(client_rows, len(raw.train)) if partition.overlapping else 1,
        public_samples=known,
        prepared_by="sample" if raw.prepared_by == "sample" else "client",
        label_dependent=partition.label_dependent,
        client_names=_names(raw.train, partition),
    )


def _names(train: Samples, partition: Partition) -> tuple[str, ...]:
    """What natural clients are called, where they have names."""
    if partition.name != "natural" or train.owners is None or np.asarray(train.owners).dtype.kind != "U":
        return ()
    return tuple(np.unique(train.owners).tolist())


def _rows(array: Array, order: Array | None = None) -> Tensor:
    """A copy in memory that torch may write to (the cache's files are mapped read-only)."""
    return torch.from_numpy(np.array(array) if order is None else np.asarray(array[order]))


def _local_test(raw: RawData, partition: Partition, client_rows: ClientRows) -> tuple[Tensor, Tensor] | None:
    """Test rows and the client each counts for: its own where owners are known, else drawn with its mix of labels."""
    if partition.name == "natural" and raw.test.owners is not None and raw.train.owners is not None:
        number = {owner: client for client, owner in enumerate(np.unique(raw.train.owners).tolist())}
        owners = np.array([number.get(owner, -1) for owner in raw.test.owners.tolist()])
        rows = np.flatnonzero(owners >= 0)
        if len(rows):  # else the test part has other owners altogether, as QMNIST's has
            return torch.from_numpy(rows), torch.from_numpy(owners[rows])
    if np.asarray(raw.train.labels).ndim > 1:
        return None  # a sample with several labels has no one class to draw by
    return _drawn_like(raw.train, raw.test, raw.classes, client_rows, int(partition.settings.get("split_seed", 0)))


def _in_proportion(mix: Array, total: int) -> Array:
    """Whole numbers in proportion to the mix that add up to the total (largest remainders first)."""
    if not mix.sum():
        return np.zeros(len(mix), dtype=np.int64)
    exact = mix * total / mix.sum()
    whole: Array = np.floor(exact).astype(np.int64)
    first = np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]
    whole[first] += 1
    return whole


def _drawn_like(
    train: Samples, test: Samples, classes: int, client_rows: ClientRows, seed: int
) -> tuple[Tensor, Tensor]:
    """For each client ceil(n_test / clients) test rows with its own mix of labels; clients may share rows.

    (What DP-FedSAM calls validation accuracy is the mean over clients of the accuracy on such sets.)
    """
    random = np.random.default_rng([seed, 1])
    each = -(-len(test) // len(client_rows))
    labels = np.asarray(train.labels)
    piles = [random.permutation(np.flatnonzero(np.asarray(test.labels) == label)) for label in range(classes)]
    there = np.array([len(pile) > 0 for pile in piles])
    rows: list[Array] = []
    for own_rows in client_rows:
        mix = np.bincount(labels[own_rows], minlength=classes)[:classes] * there
        wanted = _in_proportion(mix, each)
        mine = [np.empty(0, dtype=np.int64)]
        for label in np.flatnonzero(wanted):
            pile, start = piles[label], int(random.integers(len(piles[label])))
            mine.append(pile[(start + np.arange(min(wanted[label], len(pile)))) % len(pile)])
        rows.append(np.concatenate(mine))
    owners = np.repeat(np.arange(len(client_rows)), [len(mine) for mine in rows])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(owners)
