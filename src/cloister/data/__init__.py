"""Data: tasks by name, tasks from anybody's data, and how samples are dealt to clients."""

from __future__ import annotations

from cloister.data.datasets import (
    CATALOGUE,
    DEFAULTS,
    cifar10,
    cifar100,
    defaults_of,
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
from cloister.data.digits import digits
from cloister.data.partition import partition_data
from cloister.data.partitioners import Partition, dirichlet, dirichlet_by_class, iid, natural, overlapping, shards
from cloister.data.raw import RawData, Samples
from cloister.data.task import Task, from_arrays
from cloister.data.user.image_folder import from_image_folder
from cloister.data.user_data import from_dataset, from_folder

__all__ = [
    "CATALOGUE",
    "DEFAULTS",
    "Partition",
    "RawData",
    "Samples",
    "Task",
    "cifar10",
    "cifar100",
    "defaults_of",
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
    "from_image_folder",
    "har",
    "heart",
    "iid",
    "mnist",
    "natural",
    "overlapping",
    "partition_data",
    "qmnist",
    "shakespeare",
    "shards",
]
