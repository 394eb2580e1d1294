"""Trackers: callbacks that write what a run tells to where people look at it.

    cl.run(method, task, ..., callbacks=[cl.trackers.csv("log.csv"), cl.trackers.tensorboard("boards/one")])

Every number is under `released/` or `not_private/`, and what these mean is written beside them (`runs/callbacks.py`).
The settings of the run are there, but not its seed, by which noise could be removed; at the end also its certificate.
On the command line `log=csv,tensorboard` writes into the folder of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cloister.errors import CloisterError, expect_package, expect_type, nearest
from cloister.runs.callbacks import Callback
from cloister.runs.trackers.csv import csv
from cloister.runs.trackers.mlflow import mlflow
from cloister.runs.trackers.tensorboard import tensorboard
from cloister.runs.trackers.wandb import wandb

__all__ = ["csv", "mlflow", "tensorboard", "wandb"]

_IN_FOLDER: dict[str, Callable[[Path], Callback]] = {
    "csv": lambda folder: csv(folder / "log.csv"),
    "tensorboard": lambda folder: tensorboard(folder / "tensorboard"),
    "mlflow": lambda folder: mlflow(folder=folder / "mlflow"),
    "wandb": lambda folder: wandb(dir=str(folder)),
}


def expect_trackers(words: object) -> list[str]:
    """The trackers that a text names; refused where one does not exist, or where its package is missing."""
    words = ",".join(map(str, words)) if isinstance(words, (list, tuple)) else words
    expect_type("log", words, str, "the names of trackers", "give csv, say, or csv,tensorboard")
    names = [word.strip() for word in str(words).split(",")]
    for name in names:
        if name not in _IN_FOLDER:
            raise CloisterError(
                f"Expected log to name {', '.join(_IN_FOLDER)}, found {name!r}: {nearest(name, _IN_FOLDER)}."
            )
        if names.count(name) > 1:
            raise CloisterError(f"Expected every tracker once in log, found {name} twice: leave one out.")
        if name != "csv":
            expect_package(name, "for the tracker of that name", name)
    return names


def log_into(folder: Path, words: str) -> list[Callback]:
    """The trackers that a text names, which write into the folder of a run."""
    return [_IN_FOLDER[name](folder) for name in expect_trackers(words)]
