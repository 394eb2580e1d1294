"""Renyi divergence of the Poisson-sampled Gaussian at any order, and from divergences to epsilon.

Written from the definition, apart from `cloister.privacy`, so that a printed theorem can be evaluated with its own
sampling rate, orders and conversion.
"""

from __future__ import annotations

import math

import numpy as np

_REACH, _STEPS = 12.0, 40  # the integrand is analytic and falls like a Gaussian: the trapezoidal rule is then exact


def log_moment(order: float, sampling_rate: float, noise_multiplier: float) -> float:
    """ln E[(1 - q + q mu1(z)/mu0(z))^order] for z ~ mu0 = N(0, sigma^2) and mu1 = N(1, sigma^2).

    >>> round(log_moment(2, 0.1, 1.0), 6) == round(math.log(1 + 0.1**2 * (math.e - 1)), 6)
    True
    """
    sigma = noise_multiplier
    z = np.arange(-_REACH * sigma, order + _REACH * sigma, sigma / _STEPS)
    ratio = np.logaddexp(
        math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf,
        np.log(sampling_rate) + (2 * z - 1) / (2 * sigma**2),
    )
    logs = order * ratio - z**2 / (2 * sigma**2) - math.log(_STEPS * math.sqrt(2 * math.pi))
    return float(np.logaddexp.reduce(logs))


def log_moment_of_integer_order(order: int, sampling_rate: float, noise_multiplier: float) -> float:
    """The same at a whole order, as the sum that papers print.

        ln of the sum over i of binom(order, i) (1 - q)^(order - i) q^i exp((i^2 - i) / (2 sigma^2))

    >>> abs(log_moment_of_integer_order(7, 0.1, 1.5) - log_moment(7, 0.1, 1.5)) < 1e-12
    True
    """
    if sampling_rate == 1:
        return (order**2 - order) / (2 * noise_multiplier**2)
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(i + 1)
        - math.lgamma(order - i + 1)
        + (order - i) * math.log1p(-sampling_rate)
        + i * math.log(sampling_rate)
        + (i * i - i) / (2 * noise_multiplier**2)
        for i in range(order + 1)
    ]
    return float(np.logaddexp.reduce(terms))
