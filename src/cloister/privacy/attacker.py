"""What epsilon and delta mean for somebody who is attacked: how often the best attacker can be right.

A release is (epsilon, delta)-DP at every point of its privacy profile, not at one alone. Let E be any event about what
was released, P(E) its probability with one unit's data and Q(E) without them (or with others in their place). At every
point of the profile, in both directions,

    P(E) <= e^epsilon Q(E) + delta     and     1 - Q(E) <= e^epsilon (1 - P(E)) + delta.

Guessing. Somebody guesses a secret of one unit: a diagnosis, a whole record. Without the unit's data the guess is right
with probability p at most, which is what everything else that is known is worth. With them it is right with

    at most  min over the profile of  min( e^epsilon p + delta,  1 - e^-epsilon (1 - p - delta) ).

For every value z of the secret, E_z = "the guess is z" obeys the two inequalities, and their right sides are concave in
Q(E_z): averaged over z, they hold for the averages (Hayes, Mahloujifar & Balle 2023 prove the same by trade-off
functions). For a Gaussian of mu-GDP the minimum over its whole profile is Phi(Phi^-1(p) + mu).

Taking part. Somebody is shown the release and all data of one unit, and decides whether the unit took part; a coin is
right with 1/2. Adding half of each inequality up, the best decision is right with

    at most  min over the profile of  (e^epsilon + delta) / (1 + e^epsilon),

which a mechanism that is exactly (epsilon, delta)-DP can reach (Kairouz, Oh & Viswanath 2015).

Nothing here bounds a posterior for every single release: with delta above zero (and for every Gaussian) there are rare
releases after which an attacker is sure. What is bounded is how often the attacker is right, those releases included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[float, float]
"""Epsilon and delta, both proven of the same releases."""

PRIORS = (0.01, 0.1, 0.5)
"""What a guess is worth beforehand, in the examples that certificates give."""

PROFILE_DELTAS = (*(10 ** (-place / 8) for place in range(48, 16, -1)), *(place / 100 for place in range(1, 100)))
"""At these deltas a profile is looked at, from 1e-6 to 0.99. More of them would make the bounds a little closer."""


def guessed(profile: Sequence[Point], prior: float) -> float:
    """How often a guess is right at most that is right with probability `prior` without the unit's data.

    >>> round(guessed([(math.log(3.0), 0.0)], 0.1), 3)
    0.3
    """
    bounds = [
        min(_grown(epsilon, prior) + delta, 1 - math.exp(-epsilon) * (1 - prior - delta)) for epsilon, delta in profile
    ]
    return max(prior, min([1.0, *bounds]))


def told_apart(profile: Sequence[Point]) -> float:
    """How often the best decision whether a unit took part is right at most, where a coin is right in half of cases.

    >>> round(told_apart([(math.log(3.0), 0.0)]), 3), told_apart([(0.0, 0.0)])
    (0.75, 0.5)
    """
    bounds = [(1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)) for epsilon, delta in profile]
    return max(0.5, min([1.0, *bounds]))


def _grown(epsilon: float, prior: float) -> float:
    return prior * math.exp(min(epsilon, 700.0))  # beyond, it is more than 1 for any prior that is worth the name
