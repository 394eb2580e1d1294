"""Models and losses of somebody's own that mix the samples of a batch, or treat classes differently."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cloister as cl
from cloister.client.objective import objective_of
from cloister.core import Batch
from cloister.data.user.schema import Schema
from cloister.errors import CloisterError
from conftest import prepared

METHOD = cl.methods.dp_fedavg(clip_norm=1.0, lr=1.0, local_steps=2, noise_multiplier=1.0)


def task(loss="cross_entropy"):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return cl.data.from_arrays(x, (x[:, 0] > 0).astype(int), np.arange(60) // 10, classes=2, loss=loss)


class Mixing(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x - x.mean(0))


def balanced(outputs, labels):
    """Weighted by how many of the batch there are, as pos_weight is."""
    positive, negative = (labels == 1).sum().clamp(min=1), (labels == 0).sum()
    return torch.where(labels == 1, negative / positive, 1.0) * F.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("more", [{"model": Mixing()}, {"task": task(balanced)}], ids=["model", "loss"])
def test_what_sees_padding_is_refused_where_clients_are_protected(more):
    with pytest.raises(CloisterError, match="every sample by itself"):
        prepared(METHOD, **{"task": task(), **more})


def test_a_loss_that_mixes_by_labels_is_clipped_sample_by_sample():
    x, y = torch.ones(64, 4), (torch.arange(64) < 11).long()
    x[0] = -1
    objective = objective_of(torch.nn.Linear(4, 2), balanced, x[:2], y[:2], 2)
    w = torch.zeros(objective.layout.size)

    def summed(rows, clip_norm):
        real = torch.ones(len(rows), dtype=torch.bool)
        key = torch.zeros((), dtype=torch.int64)
        return objective.clipped(w, Batch(x[rows], y[rows], real, real.sum(), key, real.any(), w[:0]), clip_norm)

    clip_norm = float(summed(torch.arange(1, 64), 1e9)[1].max())
    moved = summed(torch.arange(64), clip_norm)[0] - summed(torch.arange(1, 64), clip_norm)[0]
    assert float(moved.norm()) <= clip_norm


def test_losses_that_weigh_classes_differently_do_not_share_noise():
    def weighted(weight):
        return lambda outputs, labels: F.cross_entropy(outputs, labels, torch.tensor([1.0, weight]), reduction="none")

    assert len({prepared(METHOD, task(weighted(weight))).fed.streams.run for weight in (1.0, 5.0)}) == 2


def test_a_cell_of_one_row_does_not_change_what_another_row_says():
    columns = {"a": {"kind": "category", "categories": ["true", "1", "2"]}, "y": "boolean"}
    schema = Schema.from_dict({"label": "y", "columns": columns})
    rows = [schema.encode({"a": [first, 1, 2], "y": [0, 1, 1]})[1].tolist() for first in (True, "2")]
    assert rows == [[0, 1, 0], [0, 1, 0]]
