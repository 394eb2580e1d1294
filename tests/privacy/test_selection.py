"""The price of releasing the best of a random number of trials, against the theorem written down once more, and against
the exact divergence where it can be computed."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from cloister.errors import CloisterError
from cloister.privacy.accountant import RDP_ORDERS
from cloister.privacy.budgets import Budget
from cloister.privacy.events import BestOfTrials
from cloister.privacy.ledger import Ledger
from cloister.privacy.selection import TrialCount, TrialPrice, best_price

SHAPES = [0.0, 0.5, 1.0, 3.0]
EVERY = pytest.mark.parametrize("shape", [*SHAPES, None])


@lru_cache
def gamma_of(mean: float, shape: float) -> float:
    """The stopping probability, from the mean in Definition 1 of the paper."""

    def excess(log_gamma):
        gamma = math.exp(log_gamma)
        below = -log_gamma if shape == 0 else -math.expm1(shape * log_gamma) / shape
        return -math.expm1(log_gamma) / (gamma * below) - mean

    return math.exp(brentq(excess, -20.0, -1e-9, xtol=1e-14, rtol=1e-14))


def theorem(mean: float, shape: float | None, price: TrialPrice, order: float | None = None) -> float:
    """Theorems 2 and 6, with the better of the two orders for what has a hat; `order` is a wrong one.

    Divergences grow with the order, so that a larger one of the two bounds the smaller one as well.
    """
    known = [(price.order, price.divergence), (price.order_hat, price.divergence_hat)]
    released = [(order or h, b) for h, b in known if h == price.order or (shape is not None and h > price.order)]
    return min(float(a + more) for lam, a in released for more in _beside(mean, shape, mpmath.mpf(lam), known))


def _beside(mean, shape, lam, known):
    """What the theorems add to a trial's divergence at an order."""
    if shape is None:
        threshold = mpmath.log(1 + 1 / (lam - 1))
        deltas = [mpmath.exp((h - 1) * (b - threshold)) / h * (1 - mpmath.mpf(1) / h) ** (h - 1) for h, b in known]
        deltas += [mpmath.sqrt(1 - mpmath.exp(-b)) for _, b in known]
        return [mean * min(deltas) + mpmath.log(mean) / (lam - 1)]
    rate = -mpmath.log(gamma_of(mean, shape))
    hats = [(1 + shape) * ((1 - mpmath.mpf(1) / h) * b + rate / h) for h, b in known]
    return [hat + mpmath.log(mean) / (lam - 1) for hat in hats]


def gaussian(noise: float, order: float = 16.0, hat: float = 8.0) -> TrialPrice:
    return TrialPrice(order, order / (2 * noise**2), hat, hat / (2 * noise**2))


@EVERY
@pytest.mark.parametrize("mean", [1.5, 10.0, 300.0])
def test_the_price_is_that_of_the_theorem_and_of_no_other_one(shape, mean):
    price = gaussian(4.0)
    found = price.selected(TrialCount(mean, shape))
    assert found == pytest.approx(theorem(mean, shape, price), rel=1e-8)
    wrong = {"K is ignored": price.divergence, "another order": theorem(mean, shape, price, order=17.0)}
    if shape is not None:
        wrong["another eta"] = theorem(mean, shape + 0.1, price)
        wrong["once, not 1 + eta times"] = theorem(mean, 0.0, price) if shape else theorem(mean, 1.0, price)
    for what, other in wrong.items():
        assert abs(other - found) > 1e-4 * found, what


def generating(count: TrialCount, x: float) -> float:
    """E[x^K], summed up."""
    ks = np.arange(200_000)
    return float(np.sum(pmf(count.mean, count.shape, ks) * np.power(x, ks)))


def pmf(mean: float, shape: float | None, ks):
    """By SciPy's distributions."""
    if shape is None:
        return stats.poisson(mean).pmf(ks)
    gamma = gamma_of(mean, shape)
    if shape == 0:
        return stats.logser(1 - gamma).pmf(ks)
    plain = stats.nbinom(shape, gamma)
    return np.where(ks > 0, plain.pmf(ks), 0) / (1 - plain.pmf(0))


def best_of(count: TrialCount, chance: float) -> list[float]:
    """What is released of trials that give 1 with this chance, and 0 else: nothing, 0 or 1."""
    none = generating(count, 0.0)
    return [none, generating(count, 1 - chance) - none, 1 - generating(count, 1 - chance)]


def renyi(p: list[float], q: list[float], order: float) -> float:
    terms = [a**order * b ** (1 - order) for a, b in zip(p, q, strict=True) if a > 0]
    return math.log(sum(terms)) / (order - 1)


@EVERY
@pytest.mark.parametrize("chance", [0.05, 0.5])
def test_no_exact_divergence_is_above_the_price_and_one_trial_s_price_would_be_too_little(shape, chance):
    count, order, hat = TrialCount(8.0, shape), 3.0, 2.0
    other = chance * 0.7
    both = [([1 - chance, chance], [1 - other, other]), ([1 - other, other], [1 - chance, chance])]
    at = {one: max(renyi(p, q, one) for p, q in both) for one in (order, hat)}
    best = [best_of(count, chance), best_of(count, other)]
    exact = max(renyi(best[0], best[1], order), renyi(best[1], best[0], order))
    assert exact <= TrialPrice(order, at[order], hat, at[hat]).selected(count)
    if chance < 0.1:
        assert exact > 2 * at[order], "a price that ignores the selection is wrong"


@EVERY
def test_the_number_of_trials_has_the_declared_distribution_and_no_neighboring_one(shape):
    count, ks = TrialCount(6.0, shape), np.arange(1, 40)
    assert [count.probability(int(k)) for k in ks] == pytest.approx(list(pmf(6.0, shape, ks)), rel=1e-6)
    draws = np.array([count.draw(u) for u in np.random.default_rng(0).random(20_000)])
    edges = np.array([0, 1, 2, 3, 4, 5, 6, 8, 10, 14, 10_000])
    observed = np.histogram(draws, edges)[0]

    def rejected(mean: float) -> float:
        chances = np.array([pmf(mean, shape, np.arange(a, min(b, 4000))).sum() for a, b in itertools.pairwise(edges)])
        kept = chances > 0
        return float(stats.chisquare(observed[kept], chances[kept] / chances.sum() * len(draws)).pvalue)

    assert rejected(6.0) > 1e-3
    assert rejected(6.6) < 1e-8


@EVERY
@pytest.mark.parametrize("mean", [1.0, 1.5, 100.0, 720.0, 746.0, 10_000.0])
def test_however_many_trials_are_expected_their_number_is_random_as_declared(shape, mean):
    """A Poisson probability of no trial, e^-mean, is no number where many are expected."""
    count = TrialCount(mean if shape is None else min(mean, 1000.0), shape)
    ks, found = np.array(list(count._probabilities())).T
    if mean > 1:
        declared = pmf(count.mean, shape, ks)
        assert np.abs(found - declared).sum() + abs(1 - declared.sum()) < 1e-6
    assert abs(found.sum() - 1) < 1e-9
    places = [1e-6, 0.05, 0.5, 0.95, 1 - 1e-6]
    drawn = [count.draw(u) for u in places]
    assert drawn == [int(ks[np.searchsorted(np.cumsum(found), u)]) for u in places]
    assert (drawn[0] < drawn[4]) == (shape is None or mean > 1), "a fixed number has no price"


@EVERY
def test_draws_at_the_edges(shape):
    count = TrialCount(30.0, shape)
    assert count.draw(0.0) <= 5
    assert 60 < count.draw(1 - 2.0**-53) < 100_000
    assert TrialCount(1.0, 1.0).draw(0.999) == 1
    with pytest.raises(CloisterError, match="expected number of trials"):
        TrialCount(0.5)


@settings(max_examples=25)
@given(
    mean=st.floats(1.1, 200.0),
    shape=st.sampled_from([*SHAPES, None]),
    noise=st.floats(0.5, 50.0),
    delta=st.floats(1e-9, 1e-2),
)
def test_the_ledger_charges_what_the_orders_were_chosen_for_and_refuses_less(mean, shape, noise, delta):
    count = TrialCount(mean, shape)
    curve = np.array(RDP_ORDERS) / (2 * noise**2)
    price = best_price(count, RDP_ORDERS, curve, delta)
    assert price.divergence == pytest.approx(price.order / (2 * noise**2))
    epsilon = price.epsilon(count, delta)
    event = BestOfTrials(
        mean, shape, price.order, price.divergence, price.order_hat, price.divergence_hat, "add or remove one"
    )
    ledger = Ledger.create(None, "tuning", {"client": Budget(epsilon * (1 + 1e-9) + 1e-12, delta)})
    ledger.charge("client", event, round=1, repeatable=False)
    assert ledger.epsilon("client", delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)
    converted = (
        theorem(mean, shape, price) + math.log1p(-1 / price.order) - math.log(delta * price.order) / (price.order - 1)
    )
    assert epsilon == pytest.approx(max(converted, 0), rel=1e-5, abs=1e-6)
    if epsilon > 1e-3:
        small = Ledger.create(None, "tuning", {"client": Budget(epsilon * 0.999, delta)})
        with pytest.raises(CloisterError, match="Expected epsilon <="):
            small.charge("client", event, round=1, repeatable=False)
