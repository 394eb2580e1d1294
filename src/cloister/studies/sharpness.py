"""How sharp a minimum is: how much the loss rises nearby, and the largest eigenvalue of its Hessian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cloister.core import Layout
from cloister.data.task import Task

DIRECTIONS = 8
_STEPS, _CLOSE = 30, 1e-3
"""Of the power iteration: at most so many, or until an estimate moves by less than this share of itself."""


@dataclass(frozen=True)
class Sharpness:
    """`rise` is by how much the loss is larger at some radius (in lengths of the model's filters), in the mean over
    `directions` random filter-normalized directions; `hessian` the eigenvalue of largest absolute value."""

    rise: dict[str, float]
    hessian: float | None
    directions: int = DIRECTIONS


def rises(
    loss: Callable[[Tensor], float], w: Tensor, direction: Callable[[int], Tensor], reach: float
) -> dict[str, float]:
    """The mean rise of the loss at a quarter, a half and all of the reach; keys are radii."""
    center, radii = loss(w), [reach / 4, reach / 2, reach]
    total = dict.fromkeys(radii, 0.0)
    for number in range(DIRECTIONS):
        away = direction(number)
        for radius in radii:
            total[radius] += loss(w + radius * away) - center
    return {f"{radius:g}": value / DIRECTIONS for radius, value in total.items()}


def largest_eigenvalue(module: nn.Module, layout: Layout, task: Task, w: Tensor, seed: int) -> float | None:
    """Of the Hessian of the mean loss on the task's test samples, by power iteration; None where a layer has no second
    derivative."""
    still = module.eval()
    inputs = task.preprocessing.test(task.test_inputs.to(w.device), w.dtype)
    labels = task.test_labels.to(w.device)

    def gradient(at: Tensor) -> Tensor:
        outputs = torch.func.functional_call(still, layout.views(at), (inputs,))
        (found,) = torch.autograd.grad(task.loss(outputs, labels).mean(), at, create_graph=True)
        return found

    direction = torch.randn(w.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(w)
    found = None
    try:
        with torch.enable_grad():
            at = w.detach().clone().requires_grad_()
            slope = gradient(at)
            for _ in range(_STEPS):
                direction = direction / torch.linalg.vector_norm(direction)
                (moved,) = torch.autograd.grad(slope, at, direction, retain_graph=True)
                before, found = found, float(direction @ moved)
                if not torch.isfinite(moved).all() or not float(torch.linalg.vector_norm(moved)):
                    return None
                if before is not None and abs(found - before) <= _CLOSE * abs(found):
                    break
                direction = moved
    except RuntimeError as error:
        if not any(words in str(error) for words in _NO_SECOND_DERIVATIVE):
            raise
        return None
    return found


_NO_SECOND_DERIVATIVE = (
    *("is not implemented", "differentiate twice"),
    *("does not require grad", "not have been used in the graph"),
)
"""What torch says of an operation that has no second derivative, or whose first one is constant. Anything else that
goes wrong, such as memory that runs out, is no property of the model."""
