"""Own data: tables with a schema that says what their columns are, files, frames and images as tasks."""

from __future__ import annotations

from cloister.data.user.array_folder import from_array_folder, write_array_folder
from cloister.data.user.drafts import inspect
from cloister.data.user.from_dataset import from_dataset
from cloister.data.user.from_path import from_path
from cloister.data.user.from_tables import from_file, from_folder, from_frame
from cloister.data.user.image_folder import from_image_folder
from cloister.data.user.schema import Schema

__all__ = [
    "Schema",
    "from_array_folder",
    "from_dataset",
    "from_file",
    "from_folder",
    "from_frame",
    "from_image_folder",
    "from_path",
    "inspect",
    "write_array_folder",
]
