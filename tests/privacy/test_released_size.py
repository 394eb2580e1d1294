"""Cohorts whose actual size is released: the price against plain numerics, and what goes wrong without it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.integrate import trapezoid

from cloister.privacy.accountant import PrivacyLoss, epsilon
from cloister.privacy.events import FixedSizeGaussian, PoissonGaussian, ReleasedSizeGaussian
from cloister.privacy.fixed_size import binomial_sizes

Z, RATE, CLIENTS, DELTA = 1.1, 0.3, 6, 1e-5
X = np.linspace(-20, 20, 20_001)


def delta_of_size(eps: float, m: int, clients: int, z: float, replaced: float) -> float:
    """The hockey-stick divergence of (m of `clients` join, their noisy sum) where one client holds `replaced` in place
    of -1 and all others -1, by quadrature: given the size m, it is in with probability m / clients."""
    share = m / clients
    with_it = share * stats.norm.pdf(X, replaced + 1, z) + (1 - share) * stats.norm.pdf(X, 0, z)  # sum + m
    return float(trapezoid(np.maximum(with_it - math.exp(eps) * stats.norm.pdf(X, 0, z), 0), X))


def delta_of(eps: float, replaced: float = 1.0, z: float = Z, clients: int = CLIENTS, rate: float = RATE) -> float:
    """Over all sizes, which are released."""
    sizes = range(1, clients + 1)
    return sum(stats.binom.pmf(m, clients, rate) * delta_of_size(eps, m, clients, z, replaced) for m in sizes)


def test_one_release_costs_what_quadrature_says():
    """A client at +1 among others at -1 attains the price: replacing it by -1 moves the sum by twice the bound."""
    found = optimize.brentq(lambda eps: delta_of(eps) - DELTA, 0.1, 30)
    assert epsilon(ReleasedSizeGaussian(Z, RATE, CLIENTS), 1, DELTA) == pytest.approx(found, rel=2e-3)


def test_the_price_of_poisson_cohorts_is_too_small():
    """At the epsilon of cohorts whose size is secret, deltas are several times what was promised: even where the
    client is taken away (0 in place of what it sent), which moves the sum by one bound."""
    claimed = epsilon(PoissonGaussian(Z, RATE), 1, DELTA)
    assert delta_of(claimed) > 100 * DELTA
    eps = np.linspace(0, claimed, 8)
    worst = max(_removed(e) / max(_poisson_delta(e), 1e-12) for e in eps)
    assert worst > 1.5


def _poisson_delta(eps: float) -> float:
    mixed = RATE * stats.norm.pdf(X, 1, Z) + (1 - RATE) * stats.norm.pdf(X, 0, Z)
    here, gone = mixed, stats.norm.pdf(X, 0, Z)
    return max(float(trapezoid(np.maximum(a - math.exp(eps) * b, 0), X)) for a, b in ((here, gone), (gone, here)))


def _removed(eps: float) -> float:
    """One client at +1 or without data, all others at -1, the size of the cohort released."""
    total = 0.0
    for m in range(1, CLIENTS + 1):
        share = m / CLIENTS
        without = (1 - share) * stats.norm.pdf(X, 0, Z)  # sum + m: the others all came
        here, gone = without + share * stats.norm.pdf(X, 2, Z), without + share * stats.norm.pdf(X, 1, Z)
        both = [float(trapezoid(np.maximum(a - math.exp(eps) * b, 0), X)) for a, b in ((here, gone), (gone, here))]
        total += stats.binom.pmf(m, CLIENTS, RATE) * max(both)
    return total


def test_taking_a_client_away_is_covered():
    """Data that become none are replaced, too."""
    loss = PrivacyLoss()
    loss.add(ReleasedSizeGaussian(Z, RATE, CLIENTS))
    for delta in (1e-2, 1e-4, 1e-6):
        assert _removed(loss.epsilon(delta)) <= delta * (1 + 1e-6)


def test_over_rounds_it_lies_between_sizes():
    """Of 1000 rounds of 3400 clients at a rate of 0.04: a little above cohorts of exactly 136 of them."""
    released, fixed = ReleasedSizeGaussian(1.46, 0.04, 3400), FixedSizeGaussian(1.46, 136, 3400)
    low, high = epsilon(fixed, 1000, 1 / 3400), epsilon(FixedSizeGaussian(1.46, 150, 3400), 1000, 1 / 3400)
    assert low < epsilon(released, 1000, 1 / 3400) < low * 1.02 < high
    assert low == pytest.approx(17.4, abs=0.1)


def test_where_everybody_comes_it_is_a_cohort_of_all():
    one, other = ReleasedSizeGaussian(2.0, 1.0, 50), FixedSizeGaussian(2.0, 50, 50)
    assert epsilon(one, 10, DELTA) == pytest.approx(epsilon(other, 10, DELTA), rel=1e-9)


@pytest.mark.parametrize(("clients", "rate"), [(1, 1.0), (2, 0.5), (5, 0.3), (500, 0.06), (10**6, 0.01), (3, 1e-9)])
def test_groups_of_sizes_hold_all_probability_and_never_less_than_they_are(clients, rate):
    found = binomial_sizes(clients, rate)
    assert len(found) < 140
    shares = [share for _, share in found]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    before = stats.binom.pmf(0, clients, rate)
    for probability, share in found:  # up to each group's largest size, its groups have all there is
        before += probability
        assert before == pytest.approx(stats.binom.cdf(round(share * clients), clients, rate), abs=1e-14)
