"""Small runs of every kind of task, for what comes after training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cloister as cl
from cloister.client import losses
from cloister.data import Task
from cloister.runs.result import Run

R = np.random.default_rng(0)
ROWS = 120
OWNERS = np.arange(ROWS) // 12
TABLE = R.normal(size=(ROWS, 5)).astype(np.float32)
CLASSES = (TABLE[:, 0] + TABLE[:, 1] > 0).astype(int) + (TABLE[:, 2] > 0.5)
BYTES = R.integers(0, 256, (ROWS, 3, 8, 8)).astype(np.uint8)
TOKENS = R.integers(0, 12, (ROWS, 7))
TIMES = np.stack([R.exponential(10, ROWS), R.integers(0, 2, ROWS)], axis=1).astype(np.float32)
NAMES = ["none", "some", "all"]


def next_tokens() -> np.ndarray:
    following = np.roll(TOKENS, -1, axis=1)
    following[:, -1] = -1
    return following


def task_of(kind: str) -> Task:
    """A task of a kind, whose test part is held out of it."""
    if kind == "images":
        return cl.data.from_arrays(BYTES, CLASSES, OWNERS, classes=3)
    if kind == "tokens":
        model = partial(cl.models.char_lstm, (7,), 12, embedding=4, hidden=6)
        return cl.data.from_arrays(TOKENS, TOKENS[:, 0], OWNERS, classes=12, model=model)
    if kind == "next_token":
        model = partial(speller, 12)
        return cl.data.from_arrays(TOKENS, next_tokens(), OWNERS, classes=12, loss="next_token", model=model)
    if kind == "regression":
        loss = losses.mse(center=50.0, scale=7.0)
        return cl.data.from_arrays(TABLE, 50 + 7 * TABLE[:, 3], OWNERS, loss=loss)
    if kind == "survival":
        return cl.data.from_arrays(TABLE, TIMES, OWNERS, loss=losses.hazards([2.0, 8.0, 20.0]))
    if kind == "cox":
        return cl.data.from_arrays(TABLE, TIMES, OWNERS, loss="cox")
    if kind == "ordinal":
        return cl.data.from_arrays(TABLE, CLASSES, OWNERS, loss="ordinal", class_names=NAMES)
    if kind == "multi_label":
        return cl.data.from_arrays(TABLE, (TABLE[:, :2] > 0).astype(np.float32), OWNERS, loss="multi_label")
    assert kind == "named"
    return cl.data.from_arrays(TABLE, CLASSES, OWNERS, class_names=NAMES)


KINDS = ("named", "images", "tokens", "next_token", "regression", "survival", "cox", "ordinal", "multi_label")


def train(folder: Path | None, task: Task, **more: Any) -> Run:
    """Three quick rounds."""
    method = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.5, local_steps=3, batch_size=4, noise_multiplier=0.5)
    options = {"rounds": 3, "cohort": cl.full(), "delta": 1e-3, "engine": "loop", **more}
    return cl.run(method, task, folder=folder, **options)


def speller(vocabulary: int) -> torch.nn.Module:
    """Of every token, the one that follows."""
    return torch.nn.Sequential(torch.nn.Embedding(vocabulary, 5), torch.nn.Linear(5, vocabulary))


def load(folder: Path) -> cl.TrainedModel:
    """The model of a run, with our word where code of ours makes it."""
    return cl.load(folder, "trained:speller" if folder.name == "next_token" else None)


def wide(shape: tuple[int, ...], classes: int, width: int = 3) -> torch.nn.Module:
    """A model of another package."""
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape[0], width), torch.nn.Linear(width, classes))
