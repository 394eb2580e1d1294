"""DP-SGD as a local rule: every step is private by itself, for any one sample of the client's.

Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar & Zhang, "Deep learning with differential privacy", CCS 2016.

    g = (sum over the batch of clip(gradient of a sample) + N(0, z^2 C^2)) / expected size of the batch

The batch is drawn in secret for every step, the divisor is a constant, and a batch without a sample still gives its
noise. What follows from g (momentum, Adam, the update, the server's mean) is computed from what was paid for.

On a grid, what is released is an exact rounding of (computed sum + ideal noise). The sum itself is computed in floating
point, of all samples at once, and rounded on the way by amounts that depend on all of them; no bound on that is priced,
and certificates say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from cloister.client.thresholds import Noised, Threshold, continuous, rounded
from cloister.client.training import Optimizer, expect_batches
from cloister.core import (
    Batch,
    Batching,
    BatchSampling,
    Layout,
    LocalRule,
    Objective,
    Phase,
    PoissonRate,
    PrivateSteps,
    Settings,
    Step,
    Tensors,
)
from cloister.core.sparsity import expect_fraction, kept_of
from cloister.errors import expect, expect_one_of, expect_type
from cloister.random.streams import fold

Sums = Callable[[Objective, Tensor, Batch, Tensor | float, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Clipping:
    """How a sample's gradient is kept within the threshold: the sum [d] over a batch, and norms [b] (or none)."""

    name: str
    sums: Sums
    limit: Callable[[int], float] | None = None

    def expect(self, active: int, size: int, threshold: float) -> None:
        """Refuse limits on coordinates that leave more than the threshold of so many active ones."""
        if self.limit is not None:
            most = self.limit(size) * math.sqrt(active)
            expect(
                most <= threshold * (1 + 1e-9), f"coordinates within {threshold:g} together", most, "lower the limit"
            )


def by_norm() -> Clipping:
    """The whole gradient (its active part) is scaled down to the threshold."""
    return Clipping(
        "norm", lambda objective, w, batch, clip_norm, active: objective.clipped(w, batch, clip_norm, active)
    )


def by_coordinate(limit: Callable[[int], float]) -> Clipping:
    """Every coordinate is kept within +-limit(d), which must keep the (active part of the) gradient within the
    threshold. Norms are not known."""

    def sums(
        objective: Objective, w: Tensor, batch: Batch, clip_norm: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return objective.clamped(w, batch, limit(w.shape[0]), active), torch.zeros_like(batch.mask, dtype=w.dtype)

    return Clipping("coordinate", sums, limit)


def by_active_coordinate(active: float | None = None) -> Clipping:
    """Every coordinate is kept within the threshold divided by the root of how many are active, whatever it is.

    A few units in the last place less, so that no rounding takes all of them together above it.
    """

    def sums(
        objective: Objective, w: Tensor, batch: Batch, clip_norm: Tensor | float, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        count = w.shape[0] if active is None else kept_of(w.shape[0], active)
        limit = clip_norm * ((1 - 8 * torch.finfo(w.dtype).eps) / math.sqrt(count))
        return objective.clamped(w, batch, limit, mask), torch.zeros_like(batch.mask, dtype=w.dtype)

    return Clipping("coordinate", sums)


Memory = Literal["kept", "reset"]
"""What becomes of the optimizer's state after a round."""


Number = int | Sequence[int] | None
"""The same for all rounds, or one for each of them."""


def dp_sgd(
    threshold: Threshold,
    optimizer: Optimizer,
    batch_size: int,
    local_steps: Number = None,
    local_epochs: Number = None,
    batch_sampling: BatchSampling = "poisson",
    memory: Memory = "reset",
    clipping: Clipping | None = None,
    active: float | None = None,
    poisson_rate: PoissonRate = "pass",
) -> LocalRule:
    """DP-SGD over a number of steps, or of epochs of as many steps as a pass has; a list has one for each round.

    Args:
        threshold: to what norm a sample's gradient is clipped.
        optimizer: what is done with the noisy gradient.
        batch_sampling: "poisson" (each sample joins with the same probability) or "fixed_size" (exactly `batch_size`).
        memory: whether the optimizer's state stays with the client from round to round.
        clipping: by the norm, unless another is given.
        active: the fraction p of coordinates that a client trains in a round, drawn at random for each round and the
            same over its steps; gradient and noise are scaled by 1/p (Fed-SPA). The threshold is for the active part.
        poisson_rate: with what probability a sample joins a Poisson batch: "pass" (1 / steps of a pass) or "exact"
            (batch_size / samples).

    Guarantee: a step is one Gaussian release of noise multiplier `threshold.worth(z)` over its batch, for one sample.
    """
    batching = _batching(batch_size, local_steps, local_epochs, batch_sampling, poisson_rate)
    expect_type("threshold", threshold, Threshold, "a Threshold such as cloister.client.fixed(1.0)")
    expect_type("optimizer", optimizer, Optimizer, "an Optimizer such as cloister.client.adam(0.01)")
    expect_one_of("memory", memory, ("kept", "reset"))
    if active is not None:
        expect_fraction("keep_fraction", active)
    clipping, follow, number = clipping or by_norm(), threshold.follow, threshold.released
    expect(
        follow is None or clipping.name == "norm",
        "clipping by norm for a threshold that follows",
        clipping.name,
        "use it",
    )

    def init(w: Tensor) -> Tensors:
        state = {"w": w, **optimizer.init(w)}
        if number is not None:
            return {**state, "threshold": number.on(w)}
        return state if follow is None else {**state, "threshold": w.new_full((1,), threshold.start)}

    def own(w: Tensor, key: Tensor) -> Tensors:
        """The active coordinates: as many as `kept_of` says, each set of them as likely as any other."""
        assert active is not None
        rank = fold(key, torch.arange(w.shape[0], device=w.device)).argsort()
        mask = torch.zeros_like(w).scatter(0, rank[: kept_of(w.shape[0], active)], torch.ones_like(w))
        return {"active": mask}

    def step(
        objective: Objective,
        state: Tensors,
        start: Tensor,
        batch: Batch,
        round: Tensor,
        noised: Noised = continuous,
    ) -> Tensors:
        size, mask = start.shape[0], state.get("active")
        constant = follow is None and number is None
        clip_norm: Tensor | float = threshold.start if constant else state["threshold"][0]
        clipping.expect(size if active is None else kept_of(size, active), size, threshold.start)
        total, norms = clipping.sums(objective, state["w"], batch, clip_norm, mask)
        noise = batch.noise[:size] if mask is None else batch.noise[:size] * mask
        gradient = noised(total, clip_norm, noise) / batch.count
        if mask is not None:
            gradient = gradient * (size / kept_of(size, active or 1.0))
        new = {**state, **optimizer.step(state, gradient, round)}
        if follow is not None:
            new["threshold"] = follow(state["threshold"], norms, batch.mask, batch.noise[size:], batch.count, noised)
        return new

    def on_grid(given: Step, grid: float) -> Step | None:
        return partial(step, noised=partial(rounded, grid)) if given is step else None

    def update(layout: Layout, state: Tensors, start: Tensor) -> Tensor:
        return state["w"] - start

    stays = [] if memory == "reset" else list(optimizer.init(torch.zeros(1)))
    return LocalRule(
        name="dp_sgd",
        settings={
            **_settings(batching),
            "memory": memory,
            "clipping": clipping.name,
            "active": active,
            "threshold": {"name": threshold.name, **threshold.settings},
            "optimizer": {"name": optimizer.name, **optimizer.settings},
        },
        phases=(Phase(batching, step),),
        init=init,
        update=update,
        own=own if active is not None else None,
        client_state=(*stays, *([] if follow is None else ["threshold"])),
        private=PrivateSteps(
            clip_norm=threshold.start if follow is None and number is None else None,
            draws=lambda size: size + (follow is not None),
            worth=threshold.worth,
            on_grid=on_grid,
        ),
    )


def _batching(
    batch_size: int,
    local_steps: Number,
    local_epochs: Number,
    batch_sampling: BatchSampling,
    poisson_rate: PoissonRate,
) -> Batching:
    """How batches are drawn; a list of steps or epochs is one of them, so many times in each round."""
    expect_batches(batch_size, local_steps, local_epochs)
    expect_one_of("batch_sampling", batch_sampling, ("poisson", "fixed_size"))
    expect_one_of("poisson_rate", poisson_rate, get_args(PoissonRate))
    exact = batch_sampling == "poisson" or poisson_rate == "pass"
    expect(exact, "poisson batches where poisson_rate is exact", batch_sampling, "leave one of them out")
    steps, by_round = (None, ()) if local_steps is None else _alike(local_steps)
    epochs, by_round = (None, by_round) if local_epochs is None else _alike(local_epochs)
    return Batching(
        batch_size, steps, epochs, batch_sampling=batch_sampling, poisson_rate=poisson_rate, by_round=by_round
    )


def _alike(number: int | Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """What all rounds have, and how many times as much each of them, where they differ."""
    return (number, ()) if isinstance(number, int) else (1, tuple(number))


def _settings(batching: Batching) -> Settings:
    """As they were given; what is as usual is left out where it is new, so that runs keep their descriptions."""

    def given(number: int | None) -> int | list[int] | None:
        return number if number is None or not batching.by_round else list(batching.by_round)

    return {
        "batch_size": batching.batch_size,
        "local_steps": given(batching.local_steps),
        "local_epochs": given(batching.local_epochs),
        "batch_sampling": batching.batch_sampling,
        **({} if batching.poisson_rate == "pass" else {"poisson_rate": batching.poisson_rate}),
    }
