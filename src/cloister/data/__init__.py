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
from cloister.data.encoders import encoder_from_json
from cloister.data.partition import partition_data
from cloister.data.partitioners import Partition, dirichlet, dirichlet_by_class, iid, natural, overlapping, shards
from cloister.data.raw import RawData, Samples
from cloister.data.task import Task, from_arrays
from cloister.data.user import (
    Schema,
    from_array_folder,
    from_dataset,
    from_file,
    from_folder,
    from_frame,
    from_image_folder,
    from_path,
    inspect,
    write_array_folder,
)

__all__ = [
    "CATALOGUE",
    "DEFAULTS",
    "Partition",
    "RawData",
    "Samples",
    "Schema",
    "Task",
    "cifar10",
    "cifar100",
    "defaults_of",
    "digits",
    "dirichlet",
    "dirichlet_by_class",
    "emnist",
    "encoder_from_json",
    "fashion_mnist",
    "fed_emnist",
    "femnist",
    "femnist_digits",
    "from_array_folder",
    "from_arrays",
    "from_dataset",
    "from_file",
    "from_folder",
    "from_frame",
    "from_image_folder",
    "from_path",
    "har",
    "heart",
    "iid",
    "inspect",
    "mnist",
    "natural",
    "overlapping",
    "partition_data",
    "qmnist",
    "shakespeare",
    "shards",
    "write_array_folder",
]
