"""Where the bound G on a sample's gradient comes from (Fed-SPA and DP-Fed): public, or by a query that is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from cloister.client.gradient_median import ReleasedNumber, asked_median
from cloister.core import BindContext, FirstQuery, LocalRule, Method
from cloister.errors import CloisterError
from cloister.methods.published import Mode, as_published

Rule = Callable[[float, ReleasedNumber | None], LocalRule]
"""Local training with G, which a query may set before the first round."""


def with_bound(
    method: Method, bound: str, share: float, clip_norm: float, context: BindContext, active: int, rule: Rule
) -> Method:
    """The method for a model of which so many numbers are active, with the bound G that was asked for."""
    if bound != "median":
        return replace(method, local=rule(public_bound(method.name, bound, clip_norm, context), None))
    # The active coordinates, each within c, are together within c times the root of their number.
    number = ReleasedNumber(clip_norm * math.sqrt(active / context.layout.size))
    return replace(method, local=rule(clip_norm, number), first_query=asked_median(share, number, math.sqrt(active)))


def public_bound(name: str, bound: str, clip_norm: float, context: BindContext) -> float:
    """G, where it is public: given, or the median of public samples' gradient values times sqrt(d)."""
    if bound != "public_median":
        return clip_norm
    if context.public_samples is None or context.public_median is None:
        raise CloisterError(
            f"Expected public samples for bound = public_median of {name}, found none: set some aside "
            "(public_samples = 500), or pay for the clients' own median (bound = median)."
        )
    return math.sqrt(context.layout.size) * context.public_median()


def asked_for(bound: str, share: float) -> FirstQuery | None:
    """What will be asked; where the answer goes is known when the model is."""
    return asked_median(share, ReleasedNumber(1.0), 1.0) if bound == "median" else None


def bound_notes(bound: str) -> tuple[str, ...]:
    return ("the public samples: they are protected by nothing, and count as public",) if "public_" in bound else ()


def expect_paid(bound: str, mode: Mode) -> None:
    """Refuse the paper's own way to its bound: a statistic of private gradients that nobody pays for."""
    if bound == "median" and as_published(mode):
        raise CloisterError(
            "Expected a bound that is paid for or public beside mode = as_published, found 'median': the paper takes "
            "it from private gradients for free, which has no price, so use bound = median with mode = sound, where "
            "it has a share of the budget, or bound = public_median."
        )
