"""What a client learns from, and how: batches and lots, the problem, and local rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from cloister.params import Layout
from cloister.privacy.events import Event, FixedSizeGaussian, PoissonGaussian, Unsupported

Settings = Mapping[str, Any]
"""Plain values that, with the name, say all about a joint: they are shown, hashed and certified."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch of one client. Padding has mask False; `key` feeds what is random in the model."""

    inputs: Tensor
    labels: Tensor
    mask: Tensor
    count: Tensor  # what a sum is divided by: how many samples are real, or 1 where none is; of a lot, what is expected
    key: Tensor
    live: Tensor  # whether the client takes this step; if not, nothing changes
    noise: Tensor  # [n] of a step that is private by itself: normal, scaled to its noise multiplier; otherwise [0]


Grad = Callable[..., Callable[..., Any]]
"""As torch.func.grad: `grad(function, has_aux=False)(argument)`, the argument a tensor or a tuple of tensors."""


@dataclass(frozen=True)
class Problem:
    """What is minimised: `loss(w, batch)` is the mean loss of the model with parameters w over real samples.

    `grad` differentiates a scalar function; engines choose the way that suits them. `outputs(w, inputs)` is what the
    model says of samples when it is used, not trained. `samples` knows the gradients of single samples.
    """

    layout: Layout
    loss: Callable[[Tensor, Batch], Tensor]
    grad: Grad
    outputs: Callable[[Tensor, Tensor], Tensor]
    samples: SampleGradients

    def gradient(self, w: Tensor, batch: Batch) -> Tensor:
        """The gradient [d] of the mean loss over a batch."""
        found: Tensor = self.grad(lambda v: self.loss(v, batch))(w)
        return found

    def clipped(
        self, w: Tensor, batch: Batch, clip: Tensor | float, active: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The sum [d] of the gradients of a batch's single samples, each clipped as a whole, and their norms [b].

        Where `active` [d] is 0 a gradient counts as zero, in its norm as well. Padding, and a sample whose gradient is
        not finite, count as zero. Guarantee: a sample moves the sum by no more than `clip`.
        """
        return self.samples.clipped(self.grad, w, batch, clip, active)

    def clamped(self, w: Tensor, batch: Batch, limit: float, active: Tensor | None = None) -> Tensor:
        """The same sum with every coordinate of every gradient kept between -limit and limit instead."""
        return self.samples.clamped(self.grad, w, batch, limit, active)


class SampleGradients(Protocol):
    """How the gradients of single samples are had; both methods are pure and can be mapped over clients."""

    def clipped(
        self, grad: Grad, w: Tensor, batch: Batch, clip: Tensor | float, active: Tensor | None
    ) -> tuple[Tensor, Tensor]: ...

    def clamped(self, grad: Grad, w: Tensor, batch: Batch, limit: float, active: Tensor | None) -> Tensor: ...

    def bytes_for(self, batch: int) -> int:
        """About how much memory a batch of one client takes beside what a plain gradient takes."""


Lots = Literal["poisson", "fixed"]


@dataclass(frozen=True)
class Batching:
    """How local data become mini-batches: shuffled passes, cut into pieces of at most `batch` samples.

    Either a number of `steps` (as many passes as they need) or of `epochs` (whole passes); or, with `again`, the last
    batch of the phase before, once more. With `lots` every step draws its samples anew, in secret, and a pass is as
    many steps as would see every sample once: "poisson" (each sample joins with probability 1/steps of a pass) or
    "fixed" (exactly `batch` of them, all subsets alike).
    """

    batch: int
    steps: int | None = None
    epochs: int | None = None
    again: bool = False
    lots: Lots | None = None

    def steps_for(self, samples: int) -> int:
        """How many steps a client with so many samples takes."""
        if not samples:
            return 0
        return (self.steps or 0) if self.epochs is None else self.epochs * -(-samples // self.batch)

    def expected(self, samples: int) -> float:
        """How many samples a lot has, or is expected to have: the constant that its sum is divided by."""
        if self.lots == "fixed":
            return float(min(self.batch, samples))
        return samples * self.rate(samples)

    def rate(self, samples: int) -> float:
        """The probability with which a sample joins a Poisson lot."""
        return 1 / max(-(-samples // self.batch), 1)

    def event(self, noise_multiplier: float, samples: int) -> Event:
        """What one step over a lot costs a client with so many samples."""
        if self.lots is None:
            return Unsupported(
                "batches are cut from shuffled passes, and only secret lots that are drawn anew have a price"
            )
        if self.lots == "fixed":
            return FixedSizeGaussian(noise_multiplier, min(self.batch, samples), samples)
        return PoissonGaussian(noise_multiplier, self.rate(samples))


State = dict[str, Tensor]

Step = Callable[[Problem, State, Tensor, Batch, Tensor], State]


@dataclass(frozen=True)
class Phase:
    """Steps of local work that are alike: which batches they take and what each does with one.

    `step(problem, state, w, batch, round) -> state`, where w is the model at the start of the round. A step that is not
    the client's (of a batch without a real sample) changes nothing: the round sees to that. The round's number is a
    tensor without dimensions, so that what is captured or compiled once serves every round.
    """

    batching: Batching
    step: Step


@dataclass(frozen=True)
class PrivateSteps:
    """What makes each step of a local rule private by itself, for one sample of the client's.

    A step takes `draws(d)` normal numbers, already scaled to the noise multiplier of its gradient, z; `worth(z)` is the
    multiplier of the one Gaussian release that all its queries together amount to. `clip` bounds one sample's share.
    """

    clip: float | None
    draws: Callable[[int], int]
    worth: Callable[[float], float]


@dataclass(frozen=True)
class LocalRule:
    """What a client computes from its data, step by step, each a pure function that engines map and compile.

    `init(w)` is the state at the start of a round (vectors), `phases` say what happens to it, and
    `update(layout, state, w) -> [d]` is what the client would send. `own(w, key)` is what of that state is random, and
    no secret; what it `keeps` stays with the client from round to round. `private` is set where every step is private
    by itself, so that the update needs no further noise.
    """

    name: str
    settings: Settings
    phases: tuple[Phase, ...]
    init: Callable[[Tensor], State]
    update: Callable[[Layout, State, Tensor], Tensor]
    own: Callable[[Tensor, Tensor], State] | None = None
    keeps: tuple[str, ...] = ()
    private: PrivateSteps | None = None

    @property
    def batching(self) -> Batching:
        """How the first phase, which trains, takes its batches."""
        return self.phases[0].batching
