"""Noise: how it follows from the sensitivity, who adds it, whom it protects, and what it is worth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor

from cloister.core.local_rule import Settings
from cloister.core.sensitivity import Sensitivity
from cloister.core.state import State
from cloister.errors import expect, expect_noise, expect_one_of
from cloister.privacy.events import Event
from cloister.privacy.unit import ProtectedUnit
from cloister.random.streams import Streams

Place = Literal["central", "distributed", "local", "nowhere"]

Draw = Callable[[float, Streams, Tensor, Sensitivity, int, int, int], Tensor]
Correlate = Callable[[Tensor, int, State], tuple[Tensor, State]]


def as_drawn(event: Event, sensitivity: Sensitivity) -> Event:
    """What Gaussian noise over whole messages is worth: to clients, not to samples."""
    return event


def _any_norm(sensitivity: Sensitivity) -> float:
    return math.inf


def _only_for_nobody(cohort: int) -> int:
    return 0 if cohort else 1


@dataclass(frozen=True)
class Mechanism:
    """The noise, derived FROM the sensitivity it is given, and what it is worth to a `unit` that it protects.

    `noise_multiplier` is the one number that is both accounted and used; None means that it is to be calibrated.
    `draw(multiplier, streams, like, sensitivity, round, client, of)` is one part of the noise: with place "central"
    the one and only (of = 1, drawn by the server), with "distributed" one client's of the cohort's `of` parts, to which
    the server adds `missing(of)` more; at most `most` clients add one. With "local" noise is in the steps of the local
    rule, and every message is private by itself.

    `account(event, sensitivity)` is the event where noise is not Gaussian; the dimension that it accounts for is the
    length that the sensitivity states. `integer` noise is for messages of whole numbers, of norm
    `most_l2(sensitivity)` at most.

    `honest_fraction` is set where samples are protected by what clients add to a sum: their parts are so large that
    those of this fraction of a round's members are all that is accounted. A sum of fewer is not to be released.

    Central noise may be correlated over rounds: `correlate(drawn, round, state) -> (noise, state)`, which is worth what
    independent noise is worth to whoever takes part once in `min_separation` rounds at most. Its state begins empty.

    `on_grid(mechanism, grid)` is the same mechanism with noise that is rounded, exactly, to a grid, for messages that
    are (`core/noise_grid.py`); None where that would not be post-processing of what is priced. It then has a `grid`:
    with place "local", in units of what one sample can move a step's sum by.
    """

    name: str
    place: Place
    noise_multiplier: float | None
    draw: Draw
    trust: str
    unit: ProtectedUnit = ProtectedUnit.CLIENT
    settings_beside: Settings = field(default_factory=dict)
    integer: bool = False
    most_l2: Callable[[Sensitivity], float] = _any_norm
    most: int | None = None
    missing: Callable[[int], int] = _only_for_nobody
    account: Callable[[Event, Sensitivity], Event] = as_drawn
    correlate: Correlate | None = None
    min_separation: int = 1
    honest_fraction: float | None = None
    on_grid: Callable[[Mechanism, float], Mechanism] | None = None
    grid: float | None = None

    def __post_init__(self) -> None:
        expect_one_of("place", self.place, get_args(Place))
        expect_one_of("unit", self.unit, tuple(ProtectedUnit), "whom the noise protects")
        object.__setattr__(self, "unit", ProtectedUnit(self.unit))  # a plain word is as good
        if self.noise_multiplier is not None:
            expect_noise("noise_multiplier", self.noise_multiplier)
        silent = self.place != "nowhere" or self.noise_multiplier == 0
        expect(silent, "no noise where place is nowhere", self.noise_multiplier, "say who adds the noise")

    @property
    def settings(self) -> Settings:
        return {"place": self.place, "noise_multiplier": self.noise_multiplier, **self.settings_beside}
