"""What a client computes from its data: how samples become mini-batches, and what happens to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from cloister.core.objective import Batch, Layout, Objective
from cloister.core.state import Tensors
from cloister.errors import expect
from cloister.privacy.events import Event, FixedSizeGaussian, Gaussian, PoissonGaussian, Unsupported

Settings = Mapping[str, Any]
"""Plain values that, with the name, say all about a part: they are shown, hashed and certified."""

BatchSampling = Literal["poisson", "fixed_size"]

PoissonRate = Literal["pass", "exact"]
"""With what probability a sample joins a Poisson batch: 1 / (steps of a pass), or batch_size / samples."""


@dataclass(frozen=True)
class Batching:
    """How local data become mini-batches: shuffled passes, cut into pieces of at most `batch_size` samples.

    Either a number of `local_steps` (as many passes as they need) or of `local_epochs` (whole passes); or, with
    `again`, the last batch of the phase before, once more. With `batch_sampling` every step draws its samples anew, in
    secret, and a pass is ceil(samples / batch_size) steps: "poisson" (each sample joins with probability
    `sampling_rate`) or "fixed_size" (exactly `batch_size` of them, all subsets alike).

    Where rounds differ, `by_round` says how many times as many steps each of them has. With a `sample_rate` every
    sample of every client joins a Poisson batch with that probability, and `batch_size` says nothing.
    """

    batch_size: int
    local_steps: int | None = None
    local_epochs: int | None = None
    again: bool = False
    batch_sampling: BatchSampling | None = None
    poisson_rate: PoissonRate = "pass"
    by_round: tuple[int, ...] = ()
    sample_rate: float | None = None

    def __post_init__(self) -> None:
        drawn = self.batch_sampling is not None or not self.by_round
        expect(drawn, "batches that are drawn where rounds differ", self.batch_sampling, "choose batch_sampling")
        poisson = self.batch_sampling == "poisson" or self.sample_rate is None
        expect(poisson, "poisson batches beside a sample_rate", self.batch_sampling, "leave one of them out")

    def steps_for(self, samples: int, round: int | None = None) -> int:
        """How many steps a client with so many samples takes in a round, which must be said where rounds differ."""
        steps = self._steps(samples)
        if not self.by_round:
            return steps
        rounds = len(self.by_round)
        named = round is not None and 1 <= round <= rounds
        expect(named, f"a round from 1 to {rounds}, for each of which a number of steps is given", round, "name one")
        assert round is not None
        return self.by_round[round - 1] * steps

    def most_steps(self, samples: int, rounds: int, participations: int) -> int:
        """The most steps that a client takes in so many of the first rounds, whichever of them these are."""
        if not self.by_round:
            return participations * self._steps(samples)
        known = len(self.by_round)
        expect(rounds <= known, f"at most {known} rounds, for each of which steps are given", rounds, "give more")
        return sum(sorted(self.by_round[:rounds])[-participations:]) * self._steps(samples)

    def _steps(self, samples: int) -> int:
        """Before rounds differ."""
        if not samples:
            return 0
        return (
            (self.local_steps or 0) if self.local_epochs is None else self.local_epochs * -(-samples // self.batch_size)
        )

    def expect_rounds(self, rounds: int) -> None:
        """Refuse a run of another number of rounds than steps are given for."""
        name = "local_steps" if self.local_epochs is None else "local_epochs"
        remedy = "give as many numbers as rounds, or one for all of them"
        fits = len(self.by_round) in (0, rounds)
        expect(fits, f"{name} to have a number for each of {rounds} rounds", list(self.by_round), remedy)

    def expected(self, samples: int) -> float:
        """How many samples a drawn batch has, or is expected to have: the constant that its sum is divided by."""
        if self.batch_sampling == "fixed_size":
            return float(min(self.batch_size, samples))
        return samples * self.sampling_rate(samples)

    def usual_size(self, samples: int) -> int:
        """About how many samples are in a batch of a client that has so many."""
        usual = self.batch_size if self.sample_rate is None else math.ceil(self.sample_rate * samples)
        return max(min(usual, samples), 1)

    def sampling_rate(self, samples: int) -> float:
        """The probability with which a sample joins a Poisson batch: what is drawn, priced and divided by."""
        if self.sample_rate is not None:
            return self.sample_rate
        if self.poisson_rate == "exact":
            return min(self.batch_size / max(samples, 1), 1.0)
        return 1 / max(-(-samples // self.batch_size), 1)

    def event(self, noise_multiplier: float, samples: int) -> Event:
        """What one step over a drawn batch costs a client with so many samples."""
        if self.batch_sampling is None:
            return Unsupported(
                "batches are cut from shuffled passes, and only secret batches that are drawn anew have a price"
            )
        if self.batch_sampling == "fixed_size":
            return FixedSizeGaussian(noise_multiplier, min(self.batch_size, samples), samples)
        if self.sample_rate == 1:  # everybody's every sample: nothing is drawn
            return Gaussian(noise_multiplier)
        return PoissonGaussian(noise_multiplier, self.sampling_rate(samples))


Step = Callable[[Objective, Tensors, Tensor, Batch, Tensor], Tensors]


@dataclass(frozen=True)
class Phase:
    """Steps of local work that are alike: which batches they take and what each does with one.

    `step(objective, state, w, batch, round) -> state`, where w is the model at the start of the round. A step that is
    not the client's (of a batch without a real sample) changes nothing: the round sees to that. The round's number is a
    tensor without dimensions, so that what is captured or compiled once serves every round.
    """

    batching: Batching
    step: Step


@dataclass(frozen=True)
class PrivateSteps:
    """What makes each step of a local rule private by itself, for one sample of the client's.

    A step takes `draws(d)` normal numbers, already scaled to the noise multiplier of its gradient, z; `worth(z)` is the
    multiplier of the one Gaussian release that all its queries together amount to. `clip_norm` bounds one sample's
    share. `on_grid(step, grid)` is the step that rounds its sums to a grid before noise on that grid is added
    (`core/noise_grid.py`), in units of what a sample can move them by; None of a step that is not the rule's own.
    """

    clip_norm: float | None
    draws: Callable[[int], int]
    worth: Callable[[float], float]
    on_grid: Callable[[Step, float], Step | None] | None = None


@dataclass(frozen=True)
class LocalRule:
    """What a client computes from its data, step by step, each a pure function that engines map and compile.

    `init(w)` is the state at the start of a round (vectors), `phases` say what happens to it, and
    `update(layout, state, w) -> [d]` is what the client would send. `own(w, key)` is what of that state is random, and
    no secret; `client_state` names what stays with the client from round to round. `private` is set where every step is
    private by itself, so that the update needs no further noise.

    `sample_l2` is set where an update is a sum over one secret batch, in which a sample has a part of at most this L2
    norm, whatever its data: noise on a sum of such updates protects samples. `told` names what of the state the server
    tells everybody, and where that lies in what a transform broadcasts: the same for all clients of a round.
    """

    name: str
    settings: Settings
    phases: tuple[Phase, ...]
    init: Callable[[Tensor], Tensors]
    update: Callable[[Layout, Tensors, Tensor], Tensor]
    own: Callable[[Tensor, Tensor], Tensors] | None = None
    client_state: tuple[str, ...] = ()
    private: PrivateSteps | None = None
    sample_l2: float | None = None
    told: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def batching(self) -> Batching:
        """How the first phase, which trains, takes its batches."""
        return self.phases[0].batching
