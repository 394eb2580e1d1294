"""Data: tasks by name, and tasks from anybody's arrays."""

from __future__ import annotations

from collections.abc import Callable

from cloister.data.digits import digits
from cloister.data.task import Task, from_arrays

CATALOGUE: dict[str, Callable[..., Task]] = {"digits": digits}

__all__ = ["CATALOGUE", "Task", "digits", "from_arrays"]
