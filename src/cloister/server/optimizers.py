"""Server optimizers: from the mean update to the next global model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from torch import Tensor

from cloister.core import Context, ServerOptimizer, State
from cloister.core.arguments import flat_arguments
from cloister.core.public_training import loss_on, train_on_public
from cloister.core.schedules import Schedule, ServerSchedule
from cloister.errors import expect, expect_count, expect_positive, expect_share, expect_type

LearningRate = Annotated[float, "server learning rate"]


@flat_arguments
def sgd(
    lr: LearningRate = 1.0, momentum: Annotated[float, "server momentum"] = 0.0, *, schedule: ServerSchedule
) -> ServerOptimizer:
    """v <- momentum * v + mean; w <- w + lr * v, with lr times the factor of a schedule (`core/schedules.py`)."""
    expect_positive("server_lr", lr, "1.0 takes the mean update as it is")
    expect_share("server_momentum", momentum, "0 switches it off", zero=True)

    def init(w: Tensor) -> State:
        return {**({"velocity": torch.zeros_like(w)} if momentum else {}), **_no_rounds(w, schedule)}

    def update(w: Tensor, mean: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        rate, counted = _rate(lr, schedule, state)
        if not momentum:
            return w + rate * mean, counted
        velocity = momentum * state["velocity"] + mean
        return w + rate * velocity, {"velocity": velocity, **counted}

    return ServerOptimizer("sgd", {"lr": lr, "momentum": momentum, **schedule.settings}, init, update)


def _no_rounds(w: Tensor, schedule: Schedule) -> State:
    """A count of rounds, where the learning rate depends on it: a resumed run goes on from there."""
    return {"rounds": w.new_zeros((), dtype=torch.float64)} if schedule.varies else {}


def _rate(lr: float, schedule: Schedule, state: State) -> tuple[Tensor | float, State]:
    """The learning rate of the round, and the count after it."""
    if not schedule.varies:
        return lr, {}
    rounds = state["rounds"] + 1
    return lr * schedule.factor(rounds), {"rounds": rounds}


@flat_arguments
def adam(
    lr: LearningRate = 0.01,
    beta1: Annotated[float, "server smoothing of the update"] = 0.9,
    beta2: Annotated[float, "server smoothing of its square"] = 0.99,
    tau: Annotated[float, "server constant in the denominator"] = 1e-3,
    v0: Annotated[float | None, "server's second moment at the start, at least tau^2 (by default tau^2)"] = None,
    *,
    schedule: ServerSchedule,
) -> ServerOptimizer:
    """The server of Fed-SPA (Hu, Gong & Guo, IJCAI 2021).

    u <- beta1 u + (1 - beta1) mean;  v <- beta2 v + (1 - beta2) u^2;  w <- w + lr u / (sqrt(v) + tau).
    Unlike Adam (Kingma & Ba 2015) it squares the smoothed update, corrects no bias, and starts from
    v = v0 >= tau^2 (the paper's v_{-1} >= kappa^2), which is tau^2 unless another is given.
    """
    expect_positive("server_lr", lr, "0.01 is usual")
    expect_positive("tau", tau, "1e-3 is usual; it bounds the step where v is small")
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        expect_share(name, beta, "0.9 and 0.99 are usual", zero=True)
    if v0 is not None:
        expect_positive("v0", v0, "the second moment to start from; tau^2 is the least")
        least = tau * tau
        expect(v0 >= least * (1 - 1e-12), f"v0 >= tau^2 = {least:g}, as Fed-SPA demands", v0, "raise v0, or lower tau")
    start = tau * tau if v0 is None else v0

    def init(w: Tensor) -> State:
        return {"u": torch.zeros_like(w), "v": torch.full_like(w, start), **_no_rounds(w, schedule)}

    def update(w: Tensor, mean: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        u = beta1 * state["u"] + (1 - beta1) * mean
        v = beta2 * state["v"] + (1 - beta2) * u * u
        rate, counted = _rate(lr, schedule, state)
        return w + rate * u / (v.sqrt() + tau), {"u": u, "v": v, **counted}

    settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "tau": tau, **schedule.settings}
    return ServerOptimizer("adam", settings if v0 is None else {**settings, "v0": v0}, init, update)


def student(lr: float, epochs: int, batch_size: int, momentum: float = 0.0) -> ServerOptimizer:
    """Train on public samples with the labels that most votes went to (AE-DPFL); `mean` holds the votes."""
    expect_positive("student_lr", lr, "the learning rate of the student")
    expect_count("student_epochs", epochs, "passes over the public samples", most=10**6)
    expect_count("student_batch_size", batch_size, "public samples in a mini-batch")
    expect_share("student_momentum", momentum, "0 switches it off", zero=True)

    def update(w: Tensor, mean: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        assert context.public_samples is not None
        classes = context.objective.outputs(w, context.public_samples[0][:1]).shape[1]
        labels = mean.view(-1, classes).argmax(1)
        inputs = context.public_samples[0][: len(labels)]
        steps = epochs * -(-len(labels) // batch_size)
        return train_on_public(
            context.objective, w, inputs, labels, lr, steps, batch_size, key=0, momentum=momentum
        ), {}

    settings = {"lr": lr, "epochs": epochs, "batch_size": batch_size, "momentum": momentum}
    return ServerOptimizer("student", settings, lambda w: {}, update, takes_updates=False)


def decay_on_loss(inner: ServerOptimizer, noise_decay: float) -> ServerOptimizer:
    """As `inner`, with an eye on the loss of the new model on public samples (Adap DP-FL).

    Whenever it has fallen three times in a row, the noise of the next round is `noise_decay` times what it was; `noise`
    in the state is that factor. The first two models count as infinitely bad, as in the paper.
    """
    expect_type("server", inner, ServerOptimizer, "a ServerOptimizer such as cloister.server.sgd()")
    expect_share("noise_decay", noise_decay, "0.9999 is usual; 1 keeps the noise as it is")

    def init(w: Tensor) -> State:
        watched = {"losses": w.new_full((3,), torch.inf), "noise": w.new_ones(()).double(), "rounds": w.new_zeros(())}
        return {"inner": inner.init(w), **watched}

    def update(w: Tensor, mean: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        assert context.public_samples is not None
        w, changed = inner.update(w, mean, state.get("inner", {}), context)
        rounds = state["rounds"] + 1
        loss = torch.where(rounds < 3, torch.inf, loss_on(context.objective, w, *context.public_samples))
        losses = torch.cat([state["losses"], loss[None]])
        falls = (losses[1:] < losses[:-1]).all()
        noise = torch.where(falls, state["noise"] * noise_decay, state["noise"])
        return w, {"inner": changed, "losses": losses[1:], "noise": noise, "rounds": rounds}

    return ServerOptimizer(
        f"{inner.name}, decay_on_loss",
        {**inner.settings, "noise_decay": noise_decay},
        init,
        update,
        inner.takes_updates,
    )


CATALOGUE: dict[str, Callable[..., ServerOptimizer]] = {"sgd": sgd, "adam": adam}
