"""How good a model is on the test set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cloister.client.losses import main_output
from cloister.core import Layout
from cloister.data.task import Task


@dataclass(frozen=True)
class Score:
    """How a model does on the test set (accuracies are None where labels are no classes).

    `accuracy` is over all labels; `mean_client_accuracy` is the mean over clients, each counting the same, of the
    accuracy on its own test samples (None where clients have none).
    """

    loss: float | None
    accuracy: float | None
    mean_client_accuracy: float | None = None


def scorer(
    module: nn.Module, layout: Layout, task: Task, like: Tensor, batch_size: int = 2048
) -> Callable[[Tensor], Score]:
    """A function that scores a flat vector on the task's test set, kept on the device of `like`.

    Every test sample goes through the model once, however many clients it counts for.
    """
    still = copy.deepcopy(module).eval()
    inputs, labels = task.test_inputs.to(like.device), task.test_labels.to(like.device)
    local = None if task.local_test is None else tuple(part.to(like.device) for part in task.local_test)

    @torch.no_grad()
    def score(w: Tensor) -> Score:
        views = layout.views(w)
        losses, right = [], []
        for some, truth in zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True):
            outputs = torch.func.functional_call(still, views, (task.preprocessing.test(some, w.dtype),))
            losses.append(task.loss(outputs, truth).flatten().double())
            if task.classes is not None:
                right.append((task.loss.predict(main_output(outputs)) == truth).double())
        mean_loss = float(torch.cat(losses).mean()) if len(labels) else None
        if not right or not len(labels):
            return Score(mean_loss, None)
        hits = torch.cat(right)
        return Score(mean_loss, float(hits.mean()), _mean_over_clients(hits, local))

    return score


def _mean_over_clients(hits: Tensor, local: tuple[Tensor, ...] | None) -> float | None:
    if local is None or not len(local[0]):
        return None
    rows, owners = local
    hits = hits.flatten(1).mean(1) if hits.dim() > 1 else hits
    counts = torch.bincount(owners)
    sums = torch.zeros(len(counts), dtype=hits.dtype, device=hits.device).index_add(0, owners, hits[rows])
    return float((sums[counts > 0] / counts[counts > 0]).mean())
