"""Own data: tables with a schema that says what their columns are, files and frames as tasks, data sets in Python."""

from __future__ import annotations

from cloister.data.user.drafts import inspect
from cloister.data.user.encoders import encoder_from_json
from cloister.data.user.from_dataset import from_dataset
from cloister.data.user.from_path import from_path
from cloister.data.user.from_tables import from_file, from_folder, from_frame
from cloister.data.user.schema import Schema

__all__ = [
    "Schema",
    "encoder_from_json",
    "from_dataset",
    "from_file",
    "from_folder",
    "from_frame",
    "from_path",
    "inspect",
]
