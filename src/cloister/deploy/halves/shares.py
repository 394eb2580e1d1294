"""Noise that clients share, made so wide that the smallest number of replies which may be accepted is enough.

A simulator knows who takes part and cuts the noise into as many shares. In a federation some who were asked may not
answer, and a node cannot know how many: with 2 of 3 shares the deviation would be 0.82 of what is priced. So a share is
one of `min_replies` parts, whoever is asked. The price is that of `min_replies` shares, and the server releases no sum
of fewer replies. Further shares are noise that nobody's data have a part in: post-processing.

All of this follows from the terms. No number that a server tells makes a node's share narrower.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from cloister import mechanisms
from cloister.core import BindContext, Cohort, Mechanism, Method, Sensitivity
from cloister.deploy.terms.terms import Terms
from cloister.privacy.unit import ProtectedUnit
from cloister.random.streams import Streams

Bind = Callable[[Method, BindContext], Method]


def counted_on(method: Method, cohort: Cohort, terms: Terms) -> Method:
    """The method, whose shares of the noise are scaled to the smallest number of replies that may be accepted."""
    if method.mechanism.place != "distributed":
        return method
    fewest = terms.federation.fewest
    if method.local_only:  # each message has the price of its own share, one of as many as are expected
        fewest = max(1, math.floor(cohort.expected(terms.clients)))
    if method.bind is None:
        return replace(method, mechanism=_of(method.mechanism, fewest))
    return replace(method, bind=_binding(method.bind, fewest))


def is_secret_sum(method: Method) -> bool:
    """Whether the (bound) method is private only where nobody sees single messages."""
    mechanism = method.mechanism
    alone = mechanism.settings.get("trust") == "message" or method.local_only
    return mechanism.place == "distributed" and not alone


def _binding(original: Bind, fewest: int) -> Bind:
    def bind(method: Method, context: BindContext) -> Method:
        if method.unit is ProtectedUnit.SAMPLE and method.mechanism.honest_fraction is None:  # coins
            return original(method, replace(context, expected=float(fewest)))
        bound = original(method, context)
        if method.unit is ProtectedUnit.CLIENT and bound.mechanism.integer:
            return _on_grid(original, method, context, fewest)
        return replace(bound, mechanism=_of(bound.mechanism, fewest))

    return bind


def _on_grid(original: Bind, method: Method, context: BindContext, fewest: int) -> Method:
    """Whole numbers on a grid with room for all messages, under discrete noise of which `fewest` shares are counted.

    All clients' shares together are wider than is priced, by the root of how many they are for each that is counted.
    """
    z, everybody = method.mechanism.noise_multiplier, max(1, math.ceil(context.expected))
    assert z is not None
    wide = replace(method.mechanism, noise_multiplier=z * math.sqrt(everybody / fewest))
    bound = original(replace(method, mechanism=wide), context)
    found = bound.mechanism
    if found.place != "distributed":
        return bound
    l2 = found.most_l2(Sensitivity())
    priced = mechanisms.discrete_gaussian(z, found.settings["scale"], fewest, l2, "distributed")
    return replace(bound, mechanism=replace(priced, most=None, missing=_nothing))  # everybody adds a share


def _of(mechanism: Mechanism, fewest: int) -> Mechanism:
    """The mechanism, whose shares are parts of so many, whatever number is given."""
    draw = mechanism.draw

    def share(
        multiplier: float, streams: Streams, like: Tensor, sensitivity: Sensitivity, round: int, client: int, of: int
    ) -> Tensor:
        return draw(multiplier, streams, like, sensitivity, round, client, fewest)

    return replace(mechanism, draw=share, most=None)


def _nothing(cohort: int) -> int:
    return 0
