"""Local training without noise, and what of its update is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, get_args

import torch
from torch import Tensor

from cloister.errors import CloisterError, expect_count, expect_one_of, expect_type
from cloister.gradients import Gradient, plain
from cloister.joints import Batch, Batching, LocalRule, Phase, Problem, State, Step
from cloister.joints.arguments import flat_arguments
from cloister.local import optimisers
from cloister.params import Layout
from cloister.sparsity import Ties, expect_fraction, expect_ties, largest

LearningRate = Annotated[float, "local learning rate"]
BatchSize = Annotated[int, "samples in a local mini-batch"]
Steps = Annotated[int | None, "local steps in a round (or give epochs)"]
Epochs = Annotated[int | None, "local passes over the data in a round (or give steps)"]
Momentum = Annotated[float, "local momentum"]
WeightDecay = Annotated[float, "local weight decay"]
LearningRateDecay = Annotated[float, "factor on the local learning rate after every round"]


@dataclass(frozen=True)
class LocalSGD:
    """How clients train: the arguments of `sgd`, and of every method that trains by it. Give steps or epochs."""

    lr: LearningRate = 0.1
    batch: BatchSize = 10
    steps: Steps = None
    epochs: Epochs = None
    momentum: Momentum = 0.0
    weight_decay: WeightDecay = 0.0
    lr_decay: LearningRateDecay = 1.0
    given_as_keywords: ClassVar[bool] = True


@flat_arguments
def sgd(*, training: LocalSGD, gradient: Gradient | None = None) -> LocalRule:
    """Stochastic gradient descent over a number of steps or of epochs; the update is w_end - w_start.

    In round t (from 1): v <- momentum * v + g + weight_decay * w; w <- w - lr * lr_decay^(t-1) * v. The velocity
    starts from zero in every round. A step without a real sample changes nothing, so a client that has no
    data sends zero, weight decay or not.
    """
    expect_batches(training.batch, training.steps, training.epochs)
    if gradient is not None:
        expect_type("gradient", gradient, Gradient, "a Gradient such as cloister.gradients.plain()")
    rule = optimisers.sgd(training.lr, training.momentum, training.weight_decay, training.lr_decay)
    gradient = gradient or plain()

    def init(w: Tensor) -> State:
        return {"w": w, **rule.init(w)}

    def step(problem: Problem, state: State, start: Tensor, batch: Batch, round: Tensor) -> State:
        return rule.step(state, gradient.of(problem, state["w"], start, batch), round)

    def update(layout: Layout, state: State, start: Tensor) -> Tensor:
        return state["w"] - start

    batching = Batching(training.batch, training.steps, training.epochs)
    settings = {
        "batch": training.batch,
        "steps": training.steps,
        "epochs": training.epochs,
        **rule.settings,
        "gradient": {"name": gradient.name, **gradient.settings},
    }
    return LocalRule("sgd", settings, (Phase(batching, step),), init, update)


def one_gradient(batch: int) -> LocalRule:
    """The descent direction at the round's model, over one secret lot of a fixed size: distributed SGD."""
    expect_count("batch", batch, "the number of samples in a lot")

    def step(problem: Problem, state: State, start: Tensor, batch: Batch, round: Tensor) -> State:
        return {"gradient": problem.gradient(start, batch)}

    def update(layout: Layout, state: State, start: Tensor) -> Tensor:
        return -state["gradient"]

    phase = Phase(Batching(batch, steps=1, lots="fixed"), step)
    return LocalRule("one_gradient", {"batch": batch}, (phase,), lambda w: {"gradient": torch.zeros_like(w)}, update)


def keep_largest(rule: LocalRule, keep: float, ties: Ties = "keep") -> LocalRule:
    """Of a rule's update, only the coordinates of largest magnitude in each layer.

    Which ones these are is as private as the update itself: noise must cover all coordinates.
    """
    expect_fraction("keep", keep)
    expect_ties(ties)

    def update(layout: Layout, state: State, start: Tensor) -> Tensor:
        whole = rule.update(layout, state, start)
        return _kept(whole, largest(whole.abs(), layout, keep, ties))

    settings = {**rule.settings, "keep": keep, "ties": ties}
    return replace(rule, name=f"{rule.name}, largest", settings=settings, update=update)


def _kept(update: Tensor, mask: Tensor) -> Tensor:
    """What the mask keeps; and what is not finite, so that the round sees it and counts the client as broken."""
    return torch.where(mask | ~torch.isfinite(update), update, torch.zeros_like(update))


Importance = Literal["all", "batch"]


def keep_important(rule: LocalRule, keep: float, data: Importance = "all", ties: Ties = "keep") -> LocalRule:
    """Of a rule's update, only the coordinates e with the largest |df/dw_e (w_e - w0_e)| in each layer (LUS).

    The gradient is that of the final local model, over all the client's data (one more pass) or over its last batch.
    Which coordinates are kept is as private as the update itself: noise must cover all of them.
    """
    expect_fraction("keep", keep)
    expect_ties(ties)
    expect_one_of("importance", data, get_args(Importance), "choose which data the gradient is over")

    def init(w: Tensor) -> State:
        return {**rule.init(w), "gradient": torch.zeros_like(w)}

    def with_gradient(step: Step) -> Step:
        return lambda problem, state, *rest: {**state, **step(problem, state, *rest)}

    def add_up(problem: Problem, state: State, start: Tensor, batch: Batch, round: Tensor) -> State:
        gradient = problem.gradient(state["w"], batch) * batch.count  # means over batches of unequal size
        return {**state, "gradient": state["gradient"] + gradient}

    def update(layout: Layout, state: State, start: Tensor) -> Tensor:
        whole = rule.update(layout, state, start)
        return _kept(whole, largest((state["gradient"] * whole).abs(), layout, keep, ties))

    size = rule.batching.batch
    closing = Batching(size, epochs=1) if data == "all" else Batching(size, again=True)
    return LocalRule(
        name=f"{rule.name}, important",
        settings={**rule.settings, "keep": keep, "importance": data, "ties": ties},
        phases=(*(Phase(p.batching, with_gradient(p.step)) for p in rule.phases), Phase(closing, add_up)),
        init=init,
        update=update,
    )


def expect_batches(batch: int, steps: int | None, epochs: int | None) -> None:
    """Refuse what does not say how long a client trains."""
    expect_count("batch", batch, "the number of samples in a mini-batch")
    if (steps is None) == (epochs is None):
        raise CloisterError(
            f"Expected either steps or epochs, found steps={steps} and epochs={epochs}: "
            "give one of them and leave the other out."
        )
    name, value = ("steps", steps) if epochs is None else ("epochs", epochs)
    assert value is not None
    expect_count(name, value, "local training needs some")
