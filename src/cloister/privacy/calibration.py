"""The noise that a target costs, and never less noise than that."""

from __future__ import annotations

import math
from collections.abc import Callable

from cloister.errors import CloisterError, UnsupportedMechanismError
from cloister.privacy.accountant import Accountant, Releases
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.budgets import Budget
from cloister.privacy.events import Event
from cloister.privacy.pricing import pricing_of

MOST_NOISE = 1e5
LEAST_NOISE = 1e-2
_PRECISION = 2e-4
_MARGIN = 1 - 1e-6  # composing round by round rounds differently from composing all at once
_STRIDE = math.log(2)


Cost = Callable[[Event, int, float], float]
"""(event, how many releases, delta) -> epsilon."""


def calibrate(
    event: Callable[[float], Event],
    rounds: int,
    epsilon: float,
    delta: float,
    precision: float = _PRECISION,
    price: Cost | None = None,
    beside: Releases = (),
) -> float:
    """The smallest noise multiplier, to the given relative precision, that keeps `rounds` releases within
    (epsilon, delta).

    Guarantee: the multiplier returned was itself priced, by the accountant that the ledger uses, and found
    to be within the target: where the search lands on the wrong side, it walks back until that is true. Another
    `price` is for what the ledger does not price in the usual way. What is released `beside` has its noise, and is part
    of what the target pays for.

    >>> from cloister.privacy.events import PoissonGaussian
    >>> noise = calibrate(lambda z: PoissonGaussian(z, sampling_rate=0.5), rounds=60, epsilon=2.0, delta=1e-3)
    >>> 5.5 < noise < 5.9
    True
    """
    target = Budget(epsilon, delta)
    # A ledger composes round by round, in windows of its own, each of which costs some 1e-15 of delta.
    strict_delta = delta - min(0.5 * delta, 4e-15 * rounds)

    def excess(log_multiplier: float, accountant: Accountant = "pld") -> float:
        """How far above the target (in logarithms, in which epsilon is nearly a straight line) the cost lies."""
        released = event(math.exp(log_multiplier))
        try:
            cost = (
                price(released, rounds, delta)
                if price
                else epsilon_of(released, rounds, strict_delta, accountant, beside)
            )
        except UnsupportedMechanismError:
            if not pricing_of(released).more_noise_helps:
                raise
            cost = math.inf  # so few coins have no price; more of them do
        return math.log(min(max(cost, 1e-9), 1e9) / (target.epsilon * _MARGIN))

    # RDP is quick at any noise and never below PLD's answer, so it says where to look.
    enough = 0.0
    while excess(enough, "rdp") > 0 and excess(enough) > 0:
        enough += _STRIDE
        if enough > math.log(MOST_NOISE):
            raise CloisterError(
                f"Expected an epsilon that some noise can reach, found {epsilon:g} at delta {delta:g} over "
                f"{rounds} rounds: not even a noise multiplier of {MOST_NOISE:g} suffices, so raise epsilon or "
                "delta, or run fewer rounds."
            )
    too_little = enough - _STRIDE
    while excess(too_little) <= 0:
        enough, too_little = too_little, too_little - _STRIDE
        if enough < math.log(LEAST_NOISE):
            return math.exp(enough)  # an epsilon this large asks for practically nothing
    from scipy.optimize import brentq

    found = float(brentq(excess, too_little, enough, xtol=precision / 2))
    step = precision / 2
    while found < enough and excess(found) > 0:
        found, step = min(found + step, enough), 2 * step
    return math.exp(found)
