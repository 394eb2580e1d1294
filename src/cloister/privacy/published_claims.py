"""What papers claim: their own arithmetic, for the certificates of runs that replicate them. Nothing here is proven."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from cloister.privacy.accountant import Accountant, PrivacyLoss
from cloister.privacy.binomial import published as binomial_theorem
from cloister.privacy.description import ClaimDescription
from cloister.privacy.events import BinomialSum, PoissonGaussian, from_json

Claim = tuple[float, str]
"""An epsilon, and in words what it rests on."""


Schedule = list[tuple[float, int]]
"""Noise multipliers, and how many releases had each, as the ledger tells."""

Arithmetic = Callable[[ClaimDescription, Schedule, float], Claim]
"""What a paper claims for a schedule at a delta."""


def _noises(schedule: Schedule) -> str:
    least, most = min(noise for noise, _ in schedule), max(noise for noise, _ in schedule)
    return f"noise multiplier {most:g}" if least == most else f"noise multipliers from {most:g} to {least:g}"


def _sampled(accountant: Accountant, what: str) -> Arithmetic:
    def claim(about: ClaimDescription, schedule: Schedule, delta: float) -> Claim:
        loss = PrivacyLoss()
        for noise, count in schedule:
            loss.add(PoissonGaussian(noise, about.sampling_rate), count)
        drawn = f"Poisson {what} of rate {about.sampling_rate:g}"
        words = f"for {_noises(schedule)} and {drawn}, by the {_NAMES[accountant]} accountant"
        return loss.epsilon(delta, accountant), words

    return claim


_NAMES = {"rdp": "Renyi", "pld": "PLD"}


def fed_spa(about: ClaimDescription, schedule: Schedule, delta: float) -> Claim:
    """Theorem 1 of Fed-SPA (Hu, Gong & Guo, IJCAI 2021), over all orders, as the published figures must have been.

    eps = 3.5 q^2 T a / s2 + ln(1/delta)/(a - 1), where s2 = (noise multiplier)^2 / 2 is the paper's sigma'^2. The
    theorem holds for s2 >= 0.7 and a <= (2/3) s2 ln(1/(q a (1 + s2))) + 1. Besides, its sensitivity is too small by
    sqrt(2): two samples' gradients differ by up to twice the bound of one.
    """
    sampling_rate = about.sampling_rate
    s2 = min(noise for noise, _ in schedule) ** 2 / 2
    slope = sum(3.5 * sampling_rate**2 * count / (noise**2 / 2) for noise, count in schedule)
    order = 1 + math.sqrt(math.log(1 / delta) / slope)  # where the derivative is zero
    found = slope * order + math.log(1 / delta) / (order - 1)
    inside = sampling_rate * order * (1 + s2)
    allowed = s2 >= 0.7 and inside < 1 and order <= 2 / 3 * s2 * math.log(1 / inside) + 1
    broken = f"whose own conditions do NOT hold (order {order:.3g} is not allowed)"
    holds = "whose conditions hold" if allowed else broken
    return found, f"by Theorem 1 of Fed-SPA for {_noises(schedule)}, {holds}"


def adap_dp_fl(about: ClaimDescription, schedule: Schedule, delta: float) -> Claim:
    """Theorem 1 of Adap DP-FL (Fu, Chen & Han 2022) with its missing logarithm: the sum over the noise multipliers as
    they came to be, integer orders 2 to 64, and no word of the query behind the clipping threshold."""
    sampling_rate = about.sampling_rate
    noises = np.array([noise for noise, _ in schedule])
    counts = np.array([count for _, count in schedule])

    def at(order: int) -> float:
        divergences = (
            order / (2 * noises**2)
            if sampling_rate == 1
            else _sampled_moments(order, sampling_rate, noises) / (order - 1)
        )
        return float(counts @ divergences) + math.log(1 / delta) / (order - 1)

    best = min(map(at, range(2, 65)))
    return best, f"by Theorem 1 of Adap DP-FL for {_noises(schedule)}, without the query of norms"


def _sampled_moments(order: int, sampling_rate: float, noises: Any) -> Any:
    """ln of the sum over i of binom(order, i) (1 - q)^(order - i) q^i exp((i^2 - i) / 2 sigma^2), for each sigma."""
    i = np.arange(order + 1)
    ways = np.array([math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1) for k in i])
    terms = (
        ways
        + (order - i) * math.log1p(-sampling_rate)
        + i * math.log(sampling_rate)
        + (i * i - i) / (2 * noises[:, None] ** 2)
    )
    return np.logaddexp.reduce(terms, axis=1)


def cpsgd(about: ClaimDescription, schedule: Schedule, delta: float) -> Claim:
    """The theorem of cpSGD for a step, amplified by its batch, once, and composed by advanced composition (Dwork,
    Rothblum & Vadhan 2010) at delta, with none of delta left for the steps: how Fed-SPA's table seems to have been
    made."""
    event, releases = from_json(about.event or {}), sum(count for _, count in schedule)
    assert isinstance(event, BinomialSum)
    step, _ = binomial_theorem(event)  # which is over its batch already
    if step > _ABSURD:
        return math.inf, "by the theorem of cpSGD, which is not true for so large an epsilon"
    found = math.sqrt(2 * releases * math.log(1 / delta)) * step + releases * step * math.expm1(step)
    return found, "by the theorem of cpSGD (not true for large epsilon) and advanced composition"


_ABSURD = 500.0

CLAIMS: dict[str, Arithmetic] = {
    "poisson_cohorts": _sampled("rdp", "cohorts"),
    "poisson_batches": _sampled("pld", "batches"),
    "fed_spa": fed_spa,
    "adap_dp_fl": adap_dp_fl,
    "cpsgd": cpsgd,
}
