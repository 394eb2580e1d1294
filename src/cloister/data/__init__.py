"""Data: tasks by name, tasks from anybody's data, and how samples are dealt to clients.

Names are imported when they are first used: what data sets there are can be said without torch (`registry.py`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloister.data.datasets import (
        CATALOGUE,
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
    from cloister.data.defaults import DEFAULTS, defaults_of
    from cloister.data.encoders import encoder_from_json
    from cloister.data.partition import partition_data
    from cloister.data.partitioners import Partition, dirichlet, dirichlet_by_class, iid, natural, overlapping, shards
    from cloister.data.raw import RawData, Samples
    from cloister.data.sklearn_digits import digits
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

# Which names each module defines.
_DEFINES = {
    "datasets": (
        *("CATALOGUE", "cifar10", "cifar100", "emnist", "fashion_mnist", "fed_emnist", "femnist", "femnist_digits"),
        *("har", "heart", "mnist", "qmnist", "shakespeare"),
    ),
    "defaults": ("DEFAULTS", "defaults_of"),
    "encoders": ("encoder_from_json",),
    "partition": ("partition_data",),
    "partitioners": ("Partition", "dirichlet", "dirichlet_by_class", "iid", "natural", "overlapping", "shards"),
    "raw": ("RawData", "Samples"),
    "sklearn_digits": ("digits",),
    "task": ("Task", "from_arrays"),
    "user": (
        *("Schema", "from_array_folder", "from_dataset", "from_file", "from_folder", "from_frame"),
        *("from_image_folder", "from_path", "inspect", "write_array_folder"),
    ),
}

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

if not TYPE_CHECKING:  # type checkers know every name, and that there are no others

    def __getattr__(name: str) -> Any:
        module = next((module for module, names in _DEFINES.items() if name in names), None)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return __all__
