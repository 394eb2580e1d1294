"""What papers claim, against the formulas on paper; and what their settings cost, against another library."""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from functools import partial

import numpy as np
import pytest

from cloister.privacy.accountant import epsilon
from cloister.privacy.description import ClaimDescription
from cloister.privacy.events import BinomialSum, FixedSizeGaussian, PoissonGaussian, to_json
from cloister.privacy.published_claims import CLAIMS, adap_dp_fl, fed_spa


def sampled(sampling_rate: float) -> ClaimDescription:
    """A claim about Poisson draws of this rate."""
    return ClaimDescription("any", noise_multiplier=1.0, sampling_rate=sampling_rate)


# ---- PFL --------------------------------------------------------------------------------------------------------

# By data set and claim: sigma, 1/q (steps of a pass, of 6000 or 5000 samples in batches of 64). Twenty epochs.
PFL = {
    ("mnist", 2.93): (0.96, 94),
    ("mnist", 1.2): (1.66, 94),
    ("fmnist", 2.7): (1.00, 94),
    ("fmnist", 1.2): (1.66, 94),
    ("cifar10", 7.53): (0.685, 79),
    ("cifar10", 3.0): (0.997, 79),
}


@pytest.mark.parametrize(("data", "claimed"), PFL)
def test_the_settings_of_pfl_cost_what_opacus_says_and_what_was_published(data, claimed):
    accountants = pytest.importorskip("opacus.accountants")
    sigma, steps = PFL[data, claimed]
    other = accountants.PRVAccountant()
    other.history = [(sigma, 1 / steps, 20 * steps)]
    ours = epsilon(PoissonGaussian(sigma, 1 / steps), 20 * steps, 1e-5)
    assert ours == pytest.approx(other.get_epsilon(1e-5), abs=0.02)
    assert ours == pytest.approx(claimed, abs=0.02)
    broadcast, words = CLAIMS["poisson_batches"](sampled(1 / steps), [(sigma, 20 * steps)], 1e-5)
    assert broadcast == ours
    assert "Poisson batches" in words


@pytest.mark.parametrize(("copies", "cost"), [(2, 4.2), (10, 10.5)])
def test_samples_that_several_clients_of_pfl_hold_lose_more(copies, cost):
    """Its authors' clients overlap: with a hundred of them, a sample lies with ten on average."""
    assert epsilon(PoissonGaussian(0.96, 1 / 94), 1880 * copies, 1e-5) == pytest.approx(cost, abs=0.06)


# ---- Fed-SPA ----------------------------------------------------------------------------------------------------


def noise_for(target: float, sampling_rate: float, releases: int, delta: float) -> float:
    """The noise multiplier at which Theorem 1, over all orders, gives a target: eps = c + 2 sqrt(c ln(1/delta))."""
    log = math.log(1 / delta)
    c = (math.sqrt(log + target) - math.sqrt(log)) ** 2
    return math.sqrt(2 * 3.5 * sampling_rate**2 * releases / c)


@pytest.mark.parametrize(("sampling_rate", "releases", "noise"), [(0.01, 100, 2.0), (1 / 60, 1350, 8.8), (0.3, 7, 1.0)])
def test_theorem_1_of_fed_spa_is_minimized_over_all_orders(sampling_rate, releases, noise):
    orders = 1 + np.geomspace(1e-3, 1e5, 200_001)
    by_hand = 7 * sampling_rate**2 * releases * orders / noise**2 + math.log(1e3) / (orders - 1)
    assert fed_spa(sampled(sampling_rate), [(noise, releases)], 1e-3)[0] == pytest.approx(by_hand.min())


# Data set: samples, steps in expectation (rounds joined times steps); by batch: the least epsilon that is ever proven.
LEAST = {(600, 1350): {2: 0.93, 3: 1.20, 10: 3.0, 50: 21}, (500, 1000): {2: 1.02, 10: 3.4}}


def least_epsilon(sampling_rate: float, releases: int, delta: float) -> float:
    """The smallest epsilon that Theorem 1 proves at any noise, by an order that it allows."""
    s2, order = np.geomspace(0.7, 1e6, 1500)[:, None], 1 + np.geomspace(1e-2, 1e5, 1500)
    inside = sampling_rate * order * (1 + s2)
    allowed = (inside < 1) & (order <= 2 / 3 * s2 * np.log(1 / np.minimum(inside, 0.999)) + 1)
    found = 3.5 * sampling_rate**2 * releases * order / s2 + math.log(1 / delta) / (order - 1)
    return float(found[allowed].min())


@pytest.mark.parametrize(("samples", "releases"), LEAST)
def test_theorem_1_of_fed_spa_hardly_ever_applies(samples, releases):
    for expected_size, least in LEAST[samples, releases].items():
        sampling_rate = expected_size / samples
        assert least_epsilon(sampling_rate, releases, 1e-3) == pytest.approx(least, rel=0.03)
        claimed, words = fed_spa(
            sampled(sampling_rate), [(noise_for(1.0, sampling_rate, releases, 1e-3), releases)], 1e-3
        )
        assert claimed == pytest.approx(1.0)
        assert least < 1 or "do NOT hold" in words


def test_theorem_1_of_fed_spa_can_apply():
    claimed, words = fed_spa(sampled(1e-4), [(10.0, 27_000_000)], 1e-3)
    assert words.endswith("whose conditions hold")
    assert claimed > epsilon(PoissonGaussian(10.0, 1e-4), 27_000_000, 1e-3, "rdp")


def test_the_noise_of_fed_spa_is_more_than_its_claim_needs():
    """At the noise of "epsilon 1": strictly 0.33 over batches of fixed size, and 0.13 over Poisson batches."""
    for expected_size, strict in ((10, 0.33), (64, 0.30)):
        noise = noise_for(1.0, expected_size / 600, 1350, 1e-3)
        assert epsilon(FixedSizeGaussian(noise, expected_size, 600), 1350, 1e-3) == pytest.approx(strict, abs=0.005)
        poisson = PoissonGaussian(noise, expected_size / 600)
        assert epsilon(poisson, 1350, 1e-3) == pytest.approx(0.13, abs=0.005)
        assert epsilon(poisson, 1350, 1e-3, "rdp") == pytest.approx(0.155, abs=0.005)


# ---- Adap DP-FL -------------------------------------------------------------------------------------------------


def theorem_1(sampling_rate: float, noise: float, releases: int, delta: float) -> float:
    """In 60 digits, as it is printed (with the logarithm that is missing there)."""
    getcontext().prec = 60
    q, twice, found = Decimal(sampling_rate), 2 * Decimal(noise) ** 2, []
    for a in range(2, 65):
        terms = [math.comb(a, i) * (1 - q) ** (a - i) * q**i * (i * (i - 1) / twice).exp() for i in range(a + 1)]
        found.append(releases * sum(terms).ln() / (a - 1) + Decimal(1 / delta).ln() / (a - 1))
    return float(min(found))


@pytest.mark.parametrize(("noise", "rounds"), [(1.1, 451), (3.0, 7_900), (4.0, 14_500), (6.0, 33_000)])
def test_adap_dp_fl_claims_epsilon_2_for_its_constant_noises(noise, rounds):
    claimed, words = adap_dp_fl(sampled(0.013), [(noise, rounds)], 1e-5)
    assert claimed == pytest.approx(theorem_1(0.013, noise, rounds, 1e-5), rel=1e-9)
    assert claimed == pytest.approx(2.0, abs=0.02)
    assert "without the query" in words


def test_what_adap_dp_fl_executes_costs_more_than_it_claims():
    """The query of norms has the gradient's noise: a multiplier of sigma / sqrt(2)."""
    executed = PoissonGaussian(1.1 / math.sqrt(2), 0.013)
    claimed, _ = adap_dp_fl(sampled(0.013), [(1.1, 451)], 1e-5)
    assert epsilon(executed, 451, 1e-5) == pytest.approx(3.2, abs=0.1)
    assert epsilon(executed, 451, 1e-5, "rdp") > 1.5 * claimed


def test_adap_dp_fl_claims_something_for_batches_of_all_samples():
    claimed, _ = adap_dp_fl(sampled(1.0), [(5.0, 3)], 1e-5)
    by_hand = min(3 * a / (2 * 25) + math.log(1e5) / (a - 1) for a in range(2, 65))
    assert claimed == pytest.approx(by_hand, rel=1e-9)


def test_the_claim_of_adap_dp_fl_follows_its_noise():
    """Noise that falls from 6 to 3.03 by 6,832 decays over 15,200 rounds: the paper's epsilon 2, and not 1.33."""
    decays = np.floor(np.arange(15_200) * 6_832 / 15_199)
    noises, counts = np.unique(6 * 0.9999**decays, return_counts=True)
    assert noises.min() == pytest.approx(3.03, abs=0.005)
    schedule = list(zip(noises.tolist(), counts.tolist(), strict=True))
    claimed, words = adap_dp_fl(sampled(0.013), schedule, 1e-5)
    assert claimed == pytest.approx(1.99, abs=0.01)
    assert "noise multipliers from 6 to 3.02989" in words
    constant, _ = adap_dp_fl(sampled(0.013), [(6.0, 15_200)], 1e-5)
    assert constant == pytest.approx(1.33, abs=0.01)


def test_every_claim_follows_a_schedule():
    """Two halves alike are the whole, and less noise in one of them claims more."""
    for name in ("poisson_cohorts", "poisson_batches", "fed_spa", "adap_dp_fl"):
        claim = partial(CLAIMS[name], sampled(0.02), delta=1e-4)
        whole = claim([(2.0, 100)])[0]
        assert claim([(2.0, 50), (2.0, 50)])[0] == pytest.approx(whole)
        assert claim([(2.0, 50), (1.5, 50)])[0] > 1.05 * whole


# ---- cpSGD ------------------------------------------------------------------------------------------------------


def cpsgd_by_hand(event: BinomialSum, releases: int, delta: float) -> float:
    """Theorem 1 of cpSGD, its sensitivities, one amplification by the batch and advanced
    composition, all from print.
    """
    d, k, n, chance = event.dimension, event.levels, event.trials, event.step_delta
    r, log = event.clip_norm * (k - 1) / event.range, math.log(2 / chance)
    l1 = math.sqrt(d) * r + math.sqrt(2 * math.sqrt(d) * r * log) + 4 / 3 * log
    l2 = r + math.sqrt(l1 + math.sqrt(2 * math.sqrt(d) * r * log))
    linf, s2 = k + 1, n / 4
    step = l2 * math.sqrt(2 * math.log(1.25 / chance)) / math.sqrt(s2)
    step += (l2 * 5 / 2 * math.sqrt(math.log(10 / chance)) + l1 / 3) / (s2 * (1 - chance / 10))
    step += 2 / 3 * linf * (math.log(1.25 / chance) + math.log(20 * d / chance) * math.log(10 / chance)) / s2
    step = math.log1p(event.sampling_rate * math.expm1(step))
    return step * math.sqrt(2 * releases * math.log(1 / delta)) + releases * step * math.expm1(step)


@pytest.mark.parametrize(("expected_size", "trials"), [(10, 711_400), (50, 711_400), (10, 71_140)])
def test_the_claim_of_cpsgd_is_amplified_once(expected_size, trials):
    event = BinomialSum(17, trials, 1.0, 1.0, 21840, expected_size / 600, 1e-6)
    claimed, _ = CLAIMS["cpsgd"](ClaimDescription("cpsgd", 1.0, 1.0, event=to_json(event)), [(1.0, 45)], 1e-3)
    assert claimed == pytest.approx(cpsgd_by_hand(event, 45, 1e-3), rel=1e-9)
