"""Privacy bugs, planted in the code that is executed; what is charged stays what it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch

import cloister as cl
from cloister.core import Cohort, Method
from cloister.random.streams import Streams

# Modules, of which some are named as what they define.
binomial, correlated, discrete_gaussian, gaussian = (
    import_module(f"cloister.mechanisms.{name}") for name in ("binomial", "correlated", "discrete_gaussian", "gaussian")
)
clipping, dp_sgd = import_module("cloister.transforms.clipping"), import_module("cloister.client.dp_sgd")

CLIP: dict[str, Any] = {"clip_norm": 1.0}
LOCAL: dict[str, Any] = {**CLIP, "lr": 0.5, "batch_size": 4, "local_steps": 1}


def less_noise(monkeypatch, factor: float = 0.5) -> None:
    """What every continuous mechanism draws from."""
    real = Streams.protective_normal
    monkeypatch.setattr(Streams, "protective_normal", lambda *args: real(*args) * factor)


def divided_twice(monkeypatch) -> None:
    """A share of the noise is divided by how many clients there are, and not by the root of it."""
    real = gaussian.gaussian_share

    def share(multiplier, streams, like, sensitivity, round, client, of):
        return real(multiplier, streams, like, sensitivity, round, client, of) / math.sqrt(of)

    monkeypatch.setattr(gaussian, "gaussian_share", share)


def no_clip(monkeypatch) -> None:
    monkeypatch.setattr(clipping, "clip_to_norm", lambda update, limit: update)


def most_without_noise(monkeypatch) -> None:
    """Only every fourth coordinate has noise."""
    real = gaussian.gaussian_share

    def share(multiplier, streams, like, *rest):
        drawn = real(multiplier, streams, like, *rest)
        return torch.where(torch.arange(drawn.numel()).view(drawn.shape) % 4 != 0, 0.0, drawn)

    monkeypatch.setattr(gaussian, "gaussian_share", share)


def narrow_grid(monkeypatch) -> None:
    real = discrete_gaussian.draws
    monkeypatch.setattr(discrete_gaussian, "draws", lambda count, scale, *rest: real(count, scale / 3, *rest))


def quiet_rounds(monkeypatch) -> None:
    """Noise that is correlated over rounds is a third as wide."""
    real = correlated.gaussian_share
    monkeypatch.setattr(correlated, "gaussian_share", lambda *args: real(*args) / 3)


def no_coins(monkeypatch) -> None:
    """As many coins fall on one side as on the other, always."""

    def coins(count, trials, streams, device, *place):
        return torch.full((count,), trials // 2, dtype=torch.int64, device=device)

    monkeypatch.setattr(binomial, "fair_coins", coins)


def wide_clip(monkeypatch) -> None:
    """A sample's gradient is clipped to four times the threshold."""

    def by_norm():
        def sums(objective, w, batch, clip_norm, active):
            return objective.clipped(w, batch, clip_norm * 4, active)

        return dp_sgd.Clipping("norm", sums)

    monkeypatch.setattr(dp_sgd, "by_norm", by_norm)


def everybody(cohort: Cohort) -> Cohort:
    """Who is drawn is everybody, at the price of a few."""
    return replace(cohort, sample=lambda streams, round, clients: torch.arange(clients))


@dataclass(frozen=True)
class Bug:
    """A bug, and a method that it is planted in."""

    make: Callable[[], Method]
    plant: Callable[..., None]
    cohort: Cohort
    rounds: int = 3
    trials: int = 4000


def _nothing(monkeypatch) -> None:
    pass


POISSON = cl.poisson(0.5)
BUGS = {
    "dp_fedavg: noise is halved": Bug(lambda: cl.methods.dp_fedavg(**LOCAL), less_noise, cl.full(), 1),
    "dp_fedavg in a secure sum: shares are too small": Bug(
        lambda: cl.methods.dp_fedavg(**LOCAL, noise="distributed"), divided_twice, POISSON
    ),
    "blur: the clip is ignored": Bug(lambda: cl.methods.blur(**LOCAL), no_clip, POISSON),
    "dp_fedsam: everybody comes at the price of a few": Bug(
        lambda: cl.methods.dp_fedsam(**LOCAL), _nothing, everybody(cl.poisson(0.04)), 10, trials=16_000
    ),
    "fed_smp_rand_k: three quarters of the coordinates have no noise": Bug(
        lambda: cl.methods.fed_smp_rand_k(**LOCAL), most_without_noise, POISSON
    ),
    "ddgauss: the grid's noise is too narrow": Bug(lambda: cl.methods.ddgauss(**LOCAL), narrow_grid, POISSON),
    "ae_dpfl: noise is halved": Bug(
        lambda: cl.methods.ae_dpfl(lr=0.5, batch_size=4, local_steps=1), less_noise, cl.full(), 1
    ),
    "adaptive_clipping: noise is halved": Bug(lambda: cl.methods.adaptive_clipping(**LOCAL), less_noise, POISSON),
    "dp_ftrl: correlated noise is too narrow": Bug(lambda: cl.methods.dp_ftrl(**LOCAL), quiet_rounds, cl.cyclic(3), 8),
    "pfl: a sample is clipped to four times the threshold": Bug(
        lambda: cl.methods.pfl(**CLIP, batch_size=4), wide_clip, cl.full(), 2
    ),
    "fed_spa: noise in the steps is halved": Bug(lambda: cl.methods.fed_spa(**LOCAL), less_noise, cl.full(), 2),
    "pfl in a secure sum: noise is halved": Bug(
        lambda: cl.methods.pfl(**CLIP, batch_size=4, trust="sum"), less_noise, cl.full(), 2
    ),
    "cpsgd: coins that always balance": Bug(lambda: cl.methods.cpsgd(**CLIP, batch_size=20), no_coins, cl.full(), 1),
}
