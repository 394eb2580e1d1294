"""Local training without noise: what a client does with a gradient, and over which batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from cloister.client.gradients import Gradient
from cloister.core import Batch, Batching, Layout, LocalRule, Objective, Phase, Settings, Tensors
from cloister.core.arguments import flat_arguments
from cloister.core.schedules import (
    LearningRateFinal,
    LearningRateRounds,
    LearningRateSchedule,
    LearningRateWarmup,
    Schedule,
)
from cloister.errors import (
    CloisterError,
    expect,
    expect_count,
    expect_not_negative,
    expect_positive,
    expect_share,
    expect_type,
)


@dataclass(frozen=True)
class Optimizer:
    """`init(w)` is what it needs beside the model, `step(state, gradient, round)` the state after a step."""

    name: str
    settings: Settings
    init: Callable[[Tensor], Tensors]
    step: Callable[[Tensors, Tensor, Tensor], Tensors]


CONSTANT = Schedule()


def sgd_optimizer(
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    lr_decay: float = 1.0,
    schedule: Schedule = CONSTANT,
) -> Optimizer:
    """In round t (from 1): v <- momentum * v + g + weight_decay * w; w <- w - lr * lr_decay^(t-1) * factor(t) * v."""
    expect_positive("lr", lr, "choose the local learning rate")
    expect_share("momentum", momentum, "0 switches it off", zero=True)
    expect_not_negative("weight_decay", weight_decay, "0 switches it off")
    expect_share("lr_decay", lr_decay, "1 keeps the learning rate over the rounds", one=True)

    def init(w: Tensor) -> Tensors:
        return {"velocity": torch.zeros_like(w)} if momentum else {}

    def step(state: Tensors, g: Tensor, round: Tensor) -> Tensors:
        w = state["w"]
        if weight_decay:
            g = torch.add(g, w, alpha=weight_decay)
        if momentum:
            g = torch.add(g, state["velocity"], alpha=momentum)
        if lr_decay == 1 and not schedule.varies:
            w = torch.sub(w, g, alpha=lr)
        else:
            rate = lr * lr_decay ** (round - 1)
            w = w - (rate * schedule.factor(round) if schedule.varies else rate) * g
        return {"w": w, "velocity": g} if momentum else {"w": w}

    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "lr_decay": lr_decay}
    return Optimizer("sgd", {**settings, **schedule.settings}, init, step)


def adam(
    lr: float, beta1: float = 0.9, beta2: float = 0.999, tiny: float = 1e-8, schedule: Schedule = CONSTANT
) -> Optimizer:
    """Adam (Kingma & Ba 2015), with its correction of the bias."""
    expect_positive("lr", lr, "choose the local learning rate")
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        expect_share(name, beta, "0.9 and 0.999 are usual", zero=True)

    def init(w: Tensor) -> Tensors:
        return {"mean": torch.zeros_like(w), "square": torch.zeros_like(w), "steps": w.new_zeros(1)}

    def step(state: Tensors, g: Tensor, round: Tensor) -> Tensors:
        steps = state["steps"] + 1
        mean = torch.lerp(state["mean"], g, 1 - beta1)
        square = beta2 * state["square"] + (1 - beta2) * g * g
        scale = (square / (1 - beta2**steps)).sqrt() + tiny
        rate = lr * schedule.factor(round) if schedule.varies else lr
        w = state["w"] - rate / (1 - beta1**steps) * mean / scale
        return {"w": w, "mean": mean, "square": square, "steps": steps}

    settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "tiny": tiny, **schedule.settings}
    return Optimizer("adam", settings, init, step)


LearningRate = Annotated[float, "local learning rate"]
BatchSize = Annotated[int, "samples in a local mini-batch"]
Steps = Annotated[int | None, "local steps in a round (or give local_epochs)"]
Epochs = Annotated[int | None, "local passes over the data in a round (or give local_steps)"]
Momentum = Annotated[float, "local momentum"]
WeightDecay = Annotated[float, "local weight decay"]
LearningRateDecay = Annotated[float, "factor on the local learning rate after every round"]


@dataclass(frozen=True)
class LocalSGD:
    """How clients train: the arguments of `sgd`, and of every method that trains by it. Give steps or epochs."""

    lr: LearningRate = 0.1
    batch_size: BatchSize = 10
    local_steps: Steps = None
    local_epochs: Epochs = None
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    lr_decay: LearningRateDecay = 1.0
    lr_schedule: LearningRateSchedule = "constant"
    lr_warmup: LearningRateWarmup = 0
    lr_final: LearningRateFinal = 0.0
    lr_rounds: LearningRateRounds = None
    given_as_keywords: ClassVar[bool] = True

    @property
    def schedule(self) -> Schedule:
        """The factor on the learning rate over the rounds."""
        return Schedule(self.lr_schedule, self.lr_warmup, self.lr_final, self.lr_rounds)


@flat_arguments
def sgd(*, training: LocalSGD, gradient: Gradient | None = None) -> LocalRule:
    """Stochastic gradient descent over a number of steps or of epochs; the update is w_end - w_start.

    In round t (from 1): v <- momentum * v + g + weight_decay * w; w <- w - lr * lr_decay^(t-1) * factor(t) * v, with
    the factor of the schedule (`core/schedules.py`). The velocity starts from zero in every round. A step without a
    real sample changes nothing, so a client that has no data sends zero, weight decay or not.
    """
    expect_batches(training.batch_size, training.local_steps, training.local_epochs)
    if gradient is not None:
        expect_type("gradient", gradient, Gradient, "a Gradient such as cloister.client.gradients.plain()")
    rule = sgd_optimizer(training.lr, training.momentum, training.weight_decay, training.lr_decay, training.schedule)
    follow = gradient

    def init(w: Tensor) -> Tensors:
        return {"w": w, **rule.init(w)}

    def step(objective: Objective, state: Tensors, start: Tensor, batch: Batch, round: Tensor) -> Tensors:
        w = state["w"]
        g = objective.gradient(w, batch) if follow is None else follow.of(objective, w, start, batch)
        return rule.step(state, g, round)

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        return state["w"] - start

    batching = Batching(training.batch_size, training.local_steps, training.local_epochs)
    settings = {
        "batch_size": training.batch_size,
        "local_steps": training.local_steps,
        "local_epochs": training.local_epochs,
        **rule.settings,
        "gradient": {"name": "plain"} if gradient is None else {"name": gradient.name, **gradient.settings},
    }
    return LocalRule("sgd", settings, (Phase(batching, step),), init, update)


def one_gradient(batch_size: int) -> LocalRule:
    """The descent direction at the round's model, over one secret batch of a fixed size: distributed SGD."""
    expect_count("batch_size", batch_size, "the number of samples in a batch")

    def step(objective: Objective, state: Tensors, start: Tensor, batch: Batch, round: Tensor) -> Tensors:
        return {"gradient": objective.gradient(start, batch)}

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        return -state["gradient"]

    phase = Phase(Batching(batch_size, local_steps=1, batch_sampling="fixed_size"), step)
    return LocalRule(
        "one_gradient", {"batch_size": batch_size}, (phase,), lambda w: {"gradient": torch.zeros_like(w)}, update
    )


def expect_batches(batch_size: int, local_steps: object, local_epochs: object) -> None:
    """Refuse what does not say how long a client trains: in all rounds alike, or, with lists, in each."""
    expect_count("batch_size", batch_size, "the number of samples in a mini-batch")
    if (local_steps is None) == (local_epochs is None):
        raise CloisterError(
            f"Expected either local_steps or local_epochs, found local_steps={local_steps} and "
            f"local_epochs={local_epochs}: give one of them and leave the other out."
        )
    name, value = ("local_steps", local_steps) if local_epochs is None else ("local_epochs", local_epochs)
    several: Any = value if isinstance(value, (list, tuple)) else [value]
    expect(bool(several), f"{name}, or one for each round", value, "local training needs some")
    for one in several:
        expect_count(name, one, "local training needs some")
