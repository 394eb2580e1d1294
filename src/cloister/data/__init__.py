"""Data: tasks by name, tasks from anybody's data, and how samples are dealt to clients."""

from __future__ import annotations

from cloister.data.deal import deal
from cloister.data.digits import digits
from cloister.data.own import from_dataset, from_folder
from cloister.data.partitions import Partition, dirichlet, dirichlet_by_class, iid, natural, overlapping, shards
from cloister.data.raw import RawData, Samples
from cloister.data.sets import (
    CATALOGUE,
    DEFAULTS,
    cifar10,
    cifar100,
    emnist,
    fashion_mnist,
    fed_emnist,
    femnist,
    femnist_digits,
    har,
    heart,
    mnist,
    qmnist,
    shakespeare,
)
from cloister.data.task import Task, from_arrays

__all__ = [
    "CATALOGUE",
    "DEFAULTS",
    "Partition",
    "RawData",
    "Samples",
    "Task",
    "cifar10",
    "cifar100",
    "deal",
    "digits",
    "dirichlet",
    "dirichlet_by_class",
    "emnist",
    "fashion_mnist",
    "fed_emnist",
    "femnist",
    "femnist_digits",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "har",
    "heart",
    "iid",
    "mnist",
    "natural",
    "overlapping",
    "qmnist",
    "shakespeare",
    "shards",
]
