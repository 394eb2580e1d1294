"""What a client does with a gradient: a step of its model, by pure functions of a state that holds the model, `w`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cloister.errors import expect_not_negative, expect_positive, expect_share
from cloister.joints import Settings, State


@dataclass(frozen=True)
class Optimiser:
    """`init(w)` is what it needs beside the model, `step(state, gradient, round)` the state after a step."""

    name: str
    settings: Settings
    init: Callable[[Tensor], State]
    step: Callable[[State, Tensor, Tensor], State]


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0, lr_decay: float = 1.0) -> Optimiser:
    """In round t (from 1): v <- momentum * v + g + weight_decay * w; w <- w - lr * lr_decay^(t-1) * v."""
    expect_positive("lr", lr, "choose the local learning rate")
    expect_share("momentum", momentum, "0 switches it off", zero=True)
    expect_not_negative("weight_decay", weight_decay, "0 switches it off")
    expect_share("lr_decay", lr_decay, "1 keeps the learning rate over the rounds", one=True)

    def init(w: Tensor) -> State:
        return {"velocity": torch.zeros_like(w)} if momentum else {}

    def step(state: State, g: Tensor, round: Tensor) -> State:
        w = state["w"]
        if weight_decay:
            g = torch.add(g, w, alpha=weight_decay)
        if momentum:
            g = torch.add(g, state["velocity"], alpha=momentum)
        w = torch.sub(w, g, alpha=lr) if lr_decay == 1 else w - lr * lr_decay ** (round - 1) * g
        return {"w": w, "velocity": g} if momentum else {"w": w}

    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "lr_decay": lr_decay}
    return Optimiser("sgd", settings, init, step)


def adam(lr: float, beta1: float = 0.9, beta2: float = 0.999, tiny: float = 1e-8) -> Optimiser:
    """Adam (Kingma & Ba 2015), with its correction of the bias."""
    expect_positive("lr", lr, "choose the local learning rate")
    for name, beta in (("beta1", beta1), ("beta2", beta2)):
        expect_share(name, beta, "0.9 and 0.999 are usual", zero=True)

    def init(w: Tensor) -> State:
        return {"mean": torch.zeros_like(w), "square": torch.zeros_like(w), "steps": w.new_zeros(1)}

    def step(state: State, g: Tensor, round: Tensor) -> State:
        steps = state["steps"] + 1
        mean = torch.lerp(state["mean"], g, 1 - beta1)
        square = beta2 * state["square"] + (1 - beta2) * g * g
        scale = (square / (1 - beta2**steps)).sqrt() + tiny
        w = state["w"] - lr / (1 - beta1**steps) * mean / scale
        return {"w": w, "mean": mean, "square": square, "steps": steps}

    return Optimiser("adam", {"lr": lr, "beta1": beta1, "beta2": beta2, "tiny": tiny}, init, step)
