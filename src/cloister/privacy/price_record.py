"""The record of what one release costs: everything that anybody asks about an event."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cloister.privacy.events import Adjacency

_MOST_STEP_POINTS = 2**19  # the finest grid for one step


def infinite(orders: Sequence[float]) -> Any:
    """The divergences of what has no price by RDP."""
    return np.full(len(orders), math.inf)


def no_pld(interval: float) -> Any:
    """In place of the distribution of what has no price by PLD."""
    raise AssertionError("asked for the privacy loss distribution of an event that has none")


@dataclass(frozen=True)
class Pricing:
    """The record of one event; `pricing_of` makes it, once."""

    words: Callable[[str], str]
    """For a certificate. The argument is what is drawn: cohorts, or batches."""
    adjacency: Adjacency | None = None
    """Which pairs of populations its price is about; None where it says nothing about any."""
    noise_multiplier: float | None = None
    refusal: str | None = None
    """Why a ledger refuses it, in a sentence, where no price is proven."""
    more_noise_helps: bool = False
    """Whether what is refused would have a price with more noise."""
    free: bool = False
    """Whether it costs nothing, because another event has paid for it."""
    unbounded: bool = False
    """Whether nothing is known but that it costs a great deal; with next to no noise the arithmetic overflows."""
    has_pld: bool = True
    """False where RDP alone has a price."""
    has_rdp: bool = True
    """False where PLD alone has a price."""
    directions: int = 1
    """Two where adding a unit and removing one lose differently."""
    typical_loss: float = 0.0
    """The size of one release's privacy loss, roughly."""
    largest_loss: float = 0.0
    """Where one release's privacy loss is cut off, whatever the sampling."""
    pld: Callable[[float], Any] = no_pld
    """One release's privacy loss distribution on a grid of this interval."""
    rdp: Callable[[Sequence[float]], Any] = infinite
    """One release's Renyi divergences at these orders."""
    json: dict[str, Any] = field(default_factory=dict)
    """The event as a ledger writes it."""

    @property
    def protects(self) -> bool:
        """Whether it hides anything: noise of a positive scale, drawn in a way that has a price."""
        return self.free or bool(self.noise_multiplier)

    @property
    def interval(self) -> float:
        """The grid of the privacy loss: a hundredth of the loss's typical size in one release.

        Connecting the dots on a grid of width h adds at most h^2/4 to the variance of one release's loss, so a
        hundredth costs about 1/40,000 of it. Very small or very wide losses get a coarser grid than that, which
        moves epsilon upwards, never downwards.
        """
        finest = max(1e-5, self.largest_loss / _MOST_STEP_POINTS)
        return max(finest, min(0.01 * self.typical_loss, 1e-2))
