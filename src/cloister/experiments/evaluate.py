"""How good a model is on the test set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cloister.data.task import Task
from cloister.params import Layout


@dataclass(frozen=True)
class Score:
    """Mean loss per label, and the fraction of labels that were right (None where labels are no classes)."""

    loss: float
    accuracy: float | None


def scorer(module: nn.Module, layout: Layout, task: Task, like: Tensor, batch: int = 4096) -> Callable[[Tensor], Score]:
    """A function that scores a flat vector on the task's test set, kept on the device of `like`."""
    still = copy.deepcopy(module).eval()
    inputs = task.test_inputs.to(like.device, like.dtype if task.test_inputs.is_floating_point() else None)
    labels = task.test_labels.to(like.device)

    @torch.no_grad()
    def score(w: Tensor) -> Score:
        loss, right, count = 0.0, 0, 0
        for some, truth in zip(torch.split(inputs, batch), torch.split(labels, batch), strict=True):
            outputs = torch.func.functional_call(still, layout.views(w), (some,))
            losses = task.loss(outputs, truth)
            loss += float(losses.sum())
            count += losses.numel()
            if task.classes is not None:
                right += int((outputs.argmax(1) == truth).sum())
        count = max(count, 1)
        return Score(loss / count, right / count if task.classes is not None else None)

    return score
