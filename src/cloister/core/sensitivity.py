"""What is known of a message before anybody has computed one: its length, its type, and by how much it can move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Sensitivity:
    """What is known of ANY client's message, whatever its data: so many numbers, of L2 norm `l2` at most.

    Where samples are protected by noise on a sum of messages (`LocalRule.sample_l2`), `l2` is by how much adding or
    removing one sample can move a message.

    `length` is None where only encoding tells. `integer`: the numbers are whole. `replace_l2` is how far a message can
    be from any other that the same client might have sent, where that is less than twice `l2`. `rounded` says to how
    many levels, and within which range, real numbers were rounded.

    Noise is scaled to `assumed_l2`, which is `l2` except where a published mistake is replicated: then the paper takes
    the norm for less than it is, and what is accounted is the noise as a multiple of `l2`.
    """

    l2: float = math.inf
    length: int | None = None
    integer: bool = False
    rounded: tuple[int, float] | None = None
    assumed_l2: float | None = None
    replace_l2: float | None = None

    @cached_property
    def unit(self) -> float:
        """What a noise multiplier multiplies."""
        return self.l2 if self.assumed_l2 is None else self.assumed_l2

    @property
    def replaced(self) -> float:
        """By how much replacing a client's data can move its message."""
        return 2 * self.l2 if self.replace_l2 is None else min(self.replace_l2, 2 * self.l2)
