"""Who takes part in a round, and what that is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cloister.core.local_rule import Settings
from cloister.privacy.events import Event
from cloister.random.streams import Streams


def _every_round(population: int) -> int:
    return 1


def _always(rounds: int, population: int) -> int:
    return rounds


@dataclass(frozen=True)
class Cohort:
    """Who takes part. `expected(N)` is the fixed denominator; `event(z, N)` prices noise z over such cohorts.

    `sample(streams, round, N)` returns sorted client numbers. Where a client takes part once in `min_separation(N)`
    rounds for certain, one event pays for that many rounds. `participations(rounds, N)` is how often a client takes
    part at most (or, of cohorts that are drawn, in all likelihood).
    """

    name: str
    settings: Settings
    sample: Callable[[Streams, int, int], Tensor]
    expected: Callable[[int], float]
    event: Callable[[float, int], Event]
    executed: str
    min_separation: Callable[[int], int] = _every_round
    participations: Callable[[int, int], int] = _always

    def releases(self, rounds: int, population: int) -> int:
        """How many events pay for so many rounds."""
        return math.ceil(rounds / self.min_separation(population))
