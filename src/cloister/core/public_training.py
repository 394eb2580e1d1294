"""Training on public data, at the server. Nothing private enters, so nothing is charged."""

from __future__ import annotations

import torch
from torch import Tensor

from cloister.core import Batch, Objective
from cloister.random.streams import fold


def train_on_public(
    objective: Objective,
    w: Tensor,
    inputs: Tensor,
    labels: Tensor,
    lr: float,
    steps: int,
    batch_size: int,
    key: int,
    momentum: float = 0.0,
) -> Tensor:
    """The model after some steps of SGD from w, over shuffled passes through the samples."""
    keys = fold(torch.full((), key, device=w.device), torch.arange(steps, device=w.device))
    random = torch.Generator(w.device).manual_seed(key & (2**63 - 1))
    order = torch.empty(0, dtype=torch.int64, device=w.device)
    w, velocity = w.detach(), torch.zeros_like(w)
    for step in range(steps):
        if not len(order):
            order = torch.randperm(len(labels), generator=random, device=w.device)
        rows, order = order[:batch_size], order[batch_size:]
        real = torch.ones(len(rows), dtype=torch.bool, device=w.device)
        count = torch.full((), len(rows), device=w.device)
        some = Batch(inputs[rows], labels[rows], real, count, keys[step], real.any(), w.new_empty(0))
        with torch.enable_grad():
            leaf = w.requires_grad_()
            (g,) = torch.autograd.grad(objective.loss(leaf, some), leaf)
        velocity = momentum * velocity + g
        w = w.detach() - lr * velocity
    return w


@torch.no_grad()
def loss_on(objective: Objective, w: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of a model over public samples."""
    real = torch.ones(len(labels), dtype=torch.bool, device=w.device)
    count, key = torch.full((), len(labels), device=w.device), torch.zeros((), dtype=torch.int64, device=w.device)
    return objective.loss(w, Batch(inputs, labels, real, count, key, real.any(), w.new_empty(0)))
