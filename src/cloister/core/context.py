"""What the parts of a method may know beside what they are given: nothing that depends on another client's data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from cloister.core.objective import Layout, Objective
from cloister.core.state import State

Samples = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Context:
    """What a transform or a server optimizer knows in a round.

    `expected` is the cohort's expected size, `w` the model at the start of the round, `broadcast` what the server told
    everybody beside it, and `key` feeds what is random on this client and protects nobody (rounding). `size` is how
    many numbers the transform is given: as many as the model has, or what the transforms before it leave. `released`
    is what this round's decoding left in the transform's state; the server optimizer may use it, because it follows
    from what was released. `samples` is how many samples this client has (a tensor without dimensions; 0 at the
    server): as private as the client, so that a transform which uses it says so (`Transform.weighting`).
    """

    objective: Objective
    public_samples: Samples | None
    expected: float
    w: Tensor
    key: Tensor
    size: int
    broadcast: State = field(default_factory=dict)
    released: State = field(default_factory=dict)
    samples: Tensor | None = None


@dataclass(frozen=True)
class BindContext:
    """What a method may depend on before the first round: the model, the cohort and public data, never a client's.

    `norms()` are those of the gradients of samples made of noise, at the model that the run starts from;
    `public_median()` is the median of the absolute values of public samples' gradients there.
    """

    layout: Layout
    expected: float
    min_separation: int
    public_samples: Samples | None
    norms: Callable[[], Tensor] | None = None
    public_median: Callable[[], float] | None = None
    clients: int = 1
    """How many there are; in a round, `expected` of them on average."""
