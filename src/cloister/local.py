"""Local rules: what a client computes from its data, as pure functions that can be mapped over a cohort."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cloister.errors import CloisterError, expect, expect_count, expect_not_negative, expect_positive
from cloister.joints import Batch, Batching, LocalRule, Problem, State

Gradient = Callable[[Problem, Tensor, Tensor, Batch], Tensor]
"""(problem, w, w at the start of the round, batch) -> gradient [d]."""


def plain_gradient(problem: Problem, w: Tensor, start: Tensor, batch: Batch) -> Tensor:
    """The gradient of the mean loss over the batch."""
    return problem.gradient(w, batch)


def sgd(
    lr: float,
    batch: int = 10,
    steps: int | None = None,
    epochs: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    gradient: Gradient = plain_gradient,
) -> LocalRule:
    """Stochastic gradient descent over a number of steps or of epochs; the update is w_end - w_start.

    In round t (from 1): v <- momentum * v + g + weight_decay * w; w <- w - lr * lr_decay^(t-1) * v. The velocity
    starts from zero in every round. A step without a real sample changes nothing, so a client that has no
    data sends zero, weight decay or not.
    """
    expect_positive("lr", lr, "choose the local learning rate")
    expect_count("batch", batch, "the number of samples in a mini-batch")
    if (steps is None) == (epochs is None):
        raise CloisterError(
            f"Expected either steps or epochs, found steps={steps} and epochs={epochs}: "
            "give one of them and leave the other out."
        )
    expect_count("steps" if epochs is None else "epochs", steps or epochs or 0, "local training needs some")
    expect(0 <= momentum < 1, "0 <= momentum < 1", momentum, "0 switches it off")
    expect_not_negative("weight_decay", weight_decay, "0 switches it off")
    expect(0 < lr_decay <= 1, "0 < lr_decay <= 1", lr_decay, "1 keeps the learning rate over the rounds")

    def init(w: Tensor) -> State:
        return {"w": w, "velocity": torch.zeros_like(w)} if momentum else {"w": w}

    def step(problem: Problem, state: State, start: Tensor, batch: Batch, round: Tensor) -> State:
        w = state["w"]
        g = gradient(problem, w, start, batch)
        if weight_decay:
            g = torch.add(g, w, alpha=weight_decay)
        if momentum:
            g = torch.add(g, state["velocity"], alpha=momentum)
        w = torch.sub(w, g, alpha=lr) if lr_decay == 1 else w - lr * lr_decay ** (round - 1) * g
        return {"w": w, "velocity": g} if momentum else {"w": w}

    def update(state: State, start: Tensor) -> Tensor:
        return state["w"] - start

    settings = {
        "lr": lr,
        "batch": batch,
        "steps": steps,
        "epochs": epochs,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "lr_decay": lr_decay,
        "gradient": gradient.__name__,
    }
    return LocalRule("sgd", settings, Batching(batch, steps, epochs), init, step, update)
