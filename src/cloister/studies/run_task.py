"""The task of a run that was started from settings: made again, and compared with what was trained on."""

from __future__ import annotations

from pathlib import Path

from cloister.data.task import Task
from cloister.errors import CloisterError
from cloister.runs.config import build
from cloister.runs.config_file import load
from cloister.runs.folder import RunFolder


def task_of(path: Path) -> Task:
    """The data of the run in a folder, which must be those that it was trained with."""
    folder = RunFolder.open(path)
    if not (path / "config.toml").is_file():
        raise CloisterError(
            f"Expected config.toml in {path}, found none: the run was started from Python, so give its task there: "
            "cloister.landscape(folder, task)."
        )
    task: Task | None = build(load(path / "config.toml")).task
    if task is None or task.fingerprint() != folder.checkpoint().facts["data"]:
        raise CloisterError(f"Expected the data with which {path} was trained, found others: restore them.")
    return task
