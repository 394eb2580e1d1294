"""The server's half, who takes part, and a method: one choice for each joint."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cloister.errors import expect, expect_type
from cloister.joints.learning import LocalRule, Settings, State
from cloister.joints.release import Here, Mechanism, Setting, Transform
from cloister.privacy.events import Event
from cloister.streams import Streams

RELEASED = "the noisy sum of the clients' updates in every round, and so every model computed from these sums"


@dataclass(frozen=True)
class ServerOptimiser:
    """The mean update as a step of the model: `update(w, mean, state, here) -> (w, what changes of the state)`.

    `takes_updates`: what it is given is as long as the model.
    """

    name: str
    settings: Settings
    init: Callable[[Tensor], State]
    update: Callable[[Tensor, Tensor, State, Here], tuple[Tensor, State]]
    takes_updates: bool = True


def _every_round(population: int) -> int:
    return 1


def _always(rounds: int, population: int) -> int:
    return rounds


@dataclass(frozen=True)
class Cohort:
    """Who takes part. `expected(N)` is the fixed denominator; `event(z, N)` prices noise z over such cohorts.

    `sample(streams, round, N)` returns sorted client numbers. Where a client takes part once in `separation(N)` rounds
    for certain, one event pays for that many rounds. `turns(rounds, N)` is how often a client takes part at most (or,
    of cohorts that are drawn, in all likelihood).
    """

    name: str
    settings: Settings
    sample: Callable[[Streams, int, int], Tensor]
    expected: Callable[[int], float]
    event: Callable[[float, int], Event]
    executed: str
    separation: Callable[[int], int] = _every_round
    turns: Callable[[int, int], int] = _always

    def releases(self, rounds: int, population: int) -> int:
        """How many events pay for so many rounds."""
        return math.ceil(rounds / self.separation(population))


@dataclass(frozen=True)
class Method:
    """A federated method: one choice for each joint but the cohort, and the unit that it protects.

    `fit(method, setting)` completes a method whose parts depend on the model, the cohort or public data, once its noise
    is known. `claims` is set where a paper's own choices are replicated: the certificate then shows what the paper
    would claim, by that arithmetic (`privacy/published.py`). `local_only`: nothing is proven of the sum, only of single
    messages. `notes` go into the certificate.
    `tempered(state)` is a factor on the noise multiplier of the next round, computed from what was released before.
    """

    name: str
    local: LocalRule
    transform: Transform
    mechanism: Mechanism
    server: ServerOptimiser
    unit: str = "client"
    released: str = RELEASED
    fit: Callable[[Method, Setting], Method] | None = None
    claims: str | None = None
    local_only: bool = False
    notes: tuple[str, ...] = ()
    trust: str | None = None  # who must be trusted, where it is not what the mechanism says
    neighbours: str | None = None  # what the price is about, where it is not what the cohort says
    tempered: Callable[[State], float] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no joint: a name, a function that was not called, a class of torch's."""
        for joint, (kind, example) in _JOINTS.items():
            expect_type(joint, getattr(self, joint), kind, f"a {kind.__name__} such as cloister.{example}")

    def init(self, w: Tensor) -> State:
        """What the server keeps from round to round, at the start; of noise, as much as messages are long."""
        length = self.transform.length
        message = w if length is None else w.new_zeros(length(w.shape[0]))
        states = self.transform.init(w), self.mechanism.init(message), self.server.init(w)
        names = [name for state in states for name in state]
        shared = sorted({name for name in names if names.count(name) > 1})
        expect(not shared, "a name in the state that only one part uses", shared, "rename it in one of them")
        return {name: value for state in states for name, value in state.items()}


_JOINTS: dict[str, tuple[type, str]] = {
    "local": (LocalRule, "local.sgd(lr=0.1, steps=5)"),
    "transform": (Transform, "transforms.clip_l2(1.0)"),
    "mechanism": (Mechanism, "mechanisms.gaussian()"),
    "server": (ServerOptimiser, "servers.sgd()"),
}


def describe(joint: LocalRule | Transform | Mechanism | ServerOptimiser | Cohort) -> dict[str, Any]:
    """A joint as plain values, for configuration hashes, certificates and people."""
    described: dict[str, Any] = {"name": joint.name, **joint.settings}
    if isinstance(joint, Transform) and joint.parts:
        described["parts"] = [describe(part) for part in joint.parts]
    return described
