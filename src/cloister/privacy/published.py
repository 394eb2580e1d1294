"""What papers claim: their own arithmetic, for the certificates of runs that replicate them. Nothing here is proven."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from cloister.privacy.accounting import Accountant, epsilon
from cloister.privacy.binomial import amplified
from cloister.privacy.binomial import published as binomial_theorem
from cloister.privacy.events import BinomialSum, PoissonGaussian, from_json

Claim = tuple[float, str]
"""An epsilon, and in words what it rests on."""


def _sampled(accountant: Accountant, what: str) -> Callable[[Mapping[str, float], int, float], Claim]:
    def claim(about: Mapping[str, float], releases: int, delta: float) -> Claim:
        noise, rate = about["noise_multiplier"], about["rate"]
        drawn = f"Poisson {what} of rate {rate:g}"
        words = f"for noise multiplier {noise:g} and {drawn}, by the {_NAMES[accountant]} accountant"
        return epsilon(PoissonGaussian(noise, rate), releases, delta, accountant), words

    return claim


_NAMES = {"rdp": "Renyi", "pld": "PLD"}


def fed_spa(about: Mapping[str, float], releases: int, delta: float) -> Claim:
    """Theorem 1 of Fed-SPA (Hu, Gong & Guo, IJCAI 2021), over all orders, as the published figures must have been.

    eps = 3.5 q^2 T a / s2 + ln(1/delta)/(a - 1), where s2 = (noise multiplier)^2 / 2 is the paper's sigma'^2. The
    theorem holds for s2 >= 0.7 and a <= (2/3) s2 ln(1/(q a (1 + s2))) + 1. Besides, its sensitivity is too small by
    sqrt(2): two samples' gradients differ by up to twice the bound of one.
    """
    rate, s2 = about["rate"], about["noise_multiplier"] ** 2 / 2
    slope = 3.5 * rate**2 * releases / s2
    order = 1 + math.sqrt(math.log(1 / delta) / slope)  # where the derivative is zero
    found = slope * order + math.log(1 / delta) / (order - 1)
    inside = rate * order * (1 + s2)
    allowed = s2 >= 0.7 and inside < 1 and order <= 2 / 3 * s2 * math.log(1 / inside) + 1
    broken = f"whose own conditions do NOT hold (order {order:.3g} is not allowed)"
    holds = "whose conditions hold" if allowed else broken
    return found, f"by Theorem 1 of Fed-SPA for noise multiplier {about['noise_multiplier']:g}, {holds}"


def adap_dp_fl(about: Mapping[str, float], releases: int, delta: float) -> Claim:
    """Theorem 1 of Adap DP-FL (Fu, Chen & Han 2022) with its missing logarithm: integer orders 2 to 64, and no word of
    the query behind the clipping threshold."""
    rate, noise = about["rate"], about["noise_multiplier"]

    def at(order: int) -> float:
        if rate == 1:
            return releases * order / (2 * noise**2) + math.log(1 / delta) / (order - 1)
        terms = [
            math.lgamma(order + 1)
            - math.lgamma(i + 1)
            - math.lgamma(order - i + 1)
            + (order - i) * math.log1p(-rate)
            + i * math.log(rate)
            + (i * i - i) / (2 * noise**2)
            for i in range(order + 1)
        ]
        top = max(terms)
        divergence = (top + math.log(sum(math.exp(term - top) for term in terms))) / (order - 1)
        return releases * divergence + math.log(1 / delta) / (order - 1)

    best = min(map(at, range(2, 65)))
    return best, f"by Theorem 1 of Adap DP-FL for a constant noise multiplier of {noise:g}, without the query of norms"


def cpsgd(about: Mapping[str, Any], releases: int, delta: float) -> Claim:
    """The theorem of cpSGD for a step, amplified by its lot and composed by advanced composition (Dwork, Rothblum &
    Vadhan 2010) at delta, with none of delta left for the steps: how Fed-SPA's table seems to have been made."""
    event = from_json(about["event"])
    assert isinstance(event, BinomialSum)
    step, _ = amplified(*binomial_theorem(event), event.rate)
    if step > _ABSURD:
        return math.inf, "by the theorem of cpSGD, which is not true for so large an epsilon"
    found = math.sqrt(2 * releases * math.log(1 / delta)) * step + releases * step * math.expm1(step)
    return found, "by the theorem of cpSGD (not true for large epsilon) and advanced composition"


_ABSURD = 500.0

CLAIMS: dict[str, Callable[[Mapping[str, Any], int, float], Claim]] = {
    "poisson_cohorts": _sampled("rdp", "cohorts"),
    "poisson_lots": _sampled("pld", "lots"),
    "fed_spa": fed_spa,
    "adap_dp_fl": adap_dp_fl,
    "cpsgd": cpsgd,
}
