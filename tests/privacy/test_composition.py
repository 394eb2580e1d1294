"""Compositions against dp-accounting's own, against exact convolutions, and in windows that do not suit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.privacy import accountant
from cloister.privacy.accountant import PrivacyLoss, epsilon
from cloister.privacy.composition import Composition, Step, rounding, steps_of
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.pricing import pricing_of

TYPICAL = [
    PoissonGaussian(1.0, 0.05),
    PoissonGaussian(1.2, 0.3),
    PoissonGaussian(3.0, 1.0),
    Gaussian(5.0),
    FixedSizeGaussian(1.0, 50, 1000),
    FixedSizeGaussian(2.38, 136, 3400),
]


def own_pld(event):
    """One release on the grid that suits it."""
    return pricing_of(event).pld(pricing_of(event).interval)


@pytest.mark.parametrize("event", [*TYPICAL, PoissonGaussian(0.8, 0.004)], ids=str)
@pytest.mark.parametrize("count", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (7, 60)), 1500])
def test_the_library_composes_to_the_same_and_never_to_more(event, count):
    theirs = own_pld(event).self_compose(count)
    for delta in (1e-3, 1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        dearer = 1e-6 + rounding(count) / delta
        assert expected * (1 - 1e-8) <= epsilon(event, count, delta) <= expected * (1 + dearer)


@pytest.mark.parametrize("event", [*TYPICAL, PoissonGaussian(0.8, 0.004)], ids=str)
def test_masses_are_the_library_s_without_its_rounding(event):
    pld = own_pld(event)
    for step, pmf in zip(steps_of(pld), (pld._pmf_remove, pld._pmf_add), strict=False):
        dense = pmf.to_dense_pmf()
        assert 1 - 1e-14 < step.masses.sum() + dense._infinity_mass < 1 + 1e-11
        assert np.abs(step.masses - dense._probs).max() < 1e-10
        positive = dense._lower_loss + np.arange(dense.size) > 0
        assert np.array_equal(step.masses[positive], dense._probs[positive])


def exact_delta(step: Step, at_infinity: float, count: int, eps: float) -> float:
    """Delta of `count` releases, by convolution in extended precision and without any window."""
    masses, total = step.masses.astype(np.longdouble), np.ones(1, dtype=np.longdouble)
    for _ in range(count):
        total = np.convolve(total, masses)
    losses = (count * step.first + np.arange(len(total))) * np.longdouble(step.interval)
    finite = np.sum(total[losses > eps] * -np.expm1(eps - losses[losses > eps]))
    return float(finite + 1 - (1 - np.longdouble(at_infinity)) ** count)


@st.composite
def steps(draw) -> tuple[Step, float]:
    """Any masses on any grid: lumpy, skewed, with gaps and with something at infinity."""
    shape = draw(st.lists(st.floats(0, 1), min_size=1, max_size=40).filter(lambda found: sum(found) > 0.1))
    at_infinity = draw(st.sampled_from([0.0, 1e-12, 1e-6]))
    masses = np.array(shape) / sum(shape) * (1 - at_infinity)
    return Step(draw(st.floats(0.003, 0.3)), draw(st.integers(-45, 5)), masses, at_infinity), at_infinity


@settings(max_examples=150, deadline=None)
@given(made=steps(), count=st.integers(1, 25), delta=st.sampled_from([1e-2, 1e-4, 1e-6]), guess=st.floats(0, 20))
def test_epsilon_is_that_of_the_exact_convolution_and_never_below(made, count, delta, guess):
    step, at_infinity = made
    found = Composition.of([(step, count)]).epsilon(delta, guess=guess)
    if math.isinf(found):
        assert exact_delta(step, at_infinity, count, 1e9) > delta * (1 - 1e-6)
        return
    assert exact_delta(step, at_infinity, count, found) <= delta
    if found > 1e-4:
        assert exact_delta(step, at_infinity, count, found - 1e-4) > delta * (1 - 1e-9), "a little less would be a lie"


@settings(max_examples=150, deadline=None)
@given(made=steps(), count=st.integers(1, 25), first=st.integers(-3000, 3000), bits=st.integers(9, 11))
def test_a_window_in_the_wrong_place_only_ever_costs_more(made, count, first, bits):
    step, at_infinity = made
    total = Composition(step.interval, first, 2**bits)
    for _ in range(count):
        total = total.plus(step, 1)
    found = total.epsilon(1e-4)
    assert math.isinf(found) or exact_delta(step, at_infinity, count, found) <= 1e-4


def test_a_delta_that_is_reached_on_a_plateau_is_not_taken_for_one_that_is_never_exceeded():
    """Three releases that are each harmless but for one in a thousand: delta stands at 1e-9 over a long way."""
    masses = np.zeros(600)
    masses[0], masses[500:] = 0.999, 1e-5
    total = Composition.of([(Step(0.1, 0, masses, 0.0), 3)])
    for k in range(-40, 40):
        delta = 1e-9 + rounding(3) + k * 2e-16
        assert total.epsilon(delta) > 105, "only beyond twice 52 can delta be this small"
    assert total.epsilon(2e-9) < 120
    assert total.epsilon(4e-3) == 0.0


def test_the_test_above_would_notice_a_window_that_forgets_what_lies_above_it():
    (step,) = steps_of(pricing_of(Gaussian(1.0)).pld(0.01))
    total = Composition(0.01, -512, 1024)  # losses up to 5.12, where 20 releases lie around 10
    for _ in range(20):
        total = total.plus(step, 1)
    assert not total.fits
    assert total.epsilon(1e-4) > epsilon(Gaussian(1.0), 20, 1e-4)
    total._outside = total._outside - 1000  # as if nothing lay above
    assert total.epsilon(1e-4) < epsilon(Gaussian(1.0), 20, 1e-4)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="needs extended precision")
@pytest.mark.parametrize("event", TYPICAL, ids=str)
@pytest.mark.parametrize("count", [1, 40, 1000])
def test_rounding_stays_within_what_is_paid_for_it(event, count):
    """The same spectra in extended precision: what double precision loses is less than a third of its allowance."""
    from scipy import fft

    step = steps_of(own_pld(event))[0]
    total = Composition.of([(step, count)])
    places = (step.first + np.arange(len(step.masses))) % total.points
    wrapped = np.zeros(total.points, dtype=np.longdouble)
    np.add.at(wrapped, places, step.masses.astype(np.longdouble))
    spectrum, power, left = fft.rfft(wrapped), 1, count
    while left:
        power, spectrum, left = power * spectrum if left & 1 else power, spectrum * spectrum, left >> 1
    masses = np.roll(fft.irfft(power, total.points), -total.first % total.points)
    assert masses.dtype == np.longdouble
    losses = (total.first + np.arange(total.points)) * np.longdouble(step.interval)
    total.epsilon(1e-5)
    kernels = total._kernels * total._spectrum
    edge = tuple(float(x) for x in kernels.real.sum(axis=1))
    for index in np.linspace(max(0, total.first), total.first + total.points - 1, 7).astype(int):
        above = losses > losses[index - total.first]
        exact = np.sum(masses[above] * -np.expm1(losses[index - total.first] - losses[above]))
        tail, tilted = total._from(int(index), edge)
        assert abs(float(tail - tilted - exact)) < rounding(count) / 3


@pytest.mark.parametrize("event", TYPICAL, ids=str)
def test_round_by_round_is_all_at_once_and_never_falls(event):
    loss, before = PrivacyLoss(), 0.0
    for count in range(1, 301):
        loss.add(event)
        now = loss.epsilon(1e-5)
        assert now > before
        before = now
        if count in (1, 2, 63, 64, 65, 150, 299):
            assert now == pytest.approx(epsilon(event, count, 1e-5), rel=1e-8)


def test_a_long_run_describes_its_release_once_and_seldom_lays_out_a_window(monkeypatch):
    """What a round costs, counted and not timed."""
    calls = {"release": 0, "window": 0}
    describe, lay_out = accountant.steps_of, Composition.of.__func__

    def counted(kind, function):
        def call(*args):
            calls[kind] += 1
            return function(*args)

        return call

    monkeypatch.setattr(accountant, "steps_of", counted("release", describe))
    monkeypatch.setattr(Composition, "of", classmethod(counted("window", lay_out)))
    loss = PrivacyLoss()
    for _ in range(1000):
        after = loss.copy()
        after.add(PoissonGaussian(1.01, 0.0501))
        after.epsilon(1e-5)
        loss = after
    assert calls["release"] == 1
    assert calls["window"] <= 2 * 5
    assert all(len(total._frequencies) < 500 for total in loss._composed)


@pytest.mark.parametrize("event", TYPICAL, ids=str)
def test_one_that_grows_lays_out_a_window_once_for_dozens_of_releases(event, monkeypatch):
    expected = {count: epsilon(event, count, 1e-5) for count in (1, 2, 60)}
    loss = PrivacyLoss(growing=True)
    for count in range(1, 61):
        loss = loss.copy()
        loss.add(event)
        now = loss.epsilon(1e-5)
        assert now == pytest.approx(expected.get(count, now), rel=1e-7)
        monkeypatch.setattr(Composition, "of", None)  # a second window would be an error


def test_what_needs_too_wide_a_window_is_left_to_rdp(monkeypatch):
    event, loss = PoissonGaussian(1.5, 0.25), PrivacyLoss()
    loss.add(event, 10)
    by_pld = loss.epsilon(1e-5)
    monkeypatch.setattr("cloister.privacy.composition._MOST_POINTS", 2**14)
    loss.add(event, 490)
    assert loss.epsilon(1e-5) == epsilon(event, 500, 1e-5, "rdp")
    loss.add(event)
    assert loss.epsilon(1e-5) == epsilon(event, 501, 1e-5, "rdp")
    monkeypatch.undo()
    loss.add(event)
    assert by_pld < loss.epsilon(1e-5) == pytest.approx(epsilon(event, 502, 1e-5), rel=1e-8)


def test_a_twin_goes_its_own_way():
    loss = PrivacyLoss()
    loss.add(TYPICAL[0], 5)
    context = loss.epsilon(1e-5)
    twin = loss.copy()
    twin.add(TYPICAL[1])
    assert twin.epsilon(1e-5) > context
    assert loss.epsilon(1e-5) == context
    loss.add(TYPICAL[0], 3)
    assert loss.epsilon(1e-5) == pytest.approx(epsilon(TYPICAL[0], 8, 1e-5), rel=1e-8)


@pytest.mark.slow
def test_releases_that_are_all_different_compose_as_the_library_says():
    """A noise multiplier of its own for every round, and a release without sampling among them."""
    events = [PoissonGaussian(2.0 - 0.05 * k, 0.2) for k in range(20)] + [Gaussian(6.0)]
    interval = min(pricing_of(event).interval for event in events)
    loss, theirs = PrivacyLoss(), None
    for event in events:
        loss.add(event)
        loss.epsilon(1e-5)
        step = pricing_of(event).pld(interval)
        theirs = step if theirs is None else theirs.compose(step)
    expected = theirs.get_epsilon_for_delta(1e-5)
    assert expected * (1 - 1e-8) <= loss.epsilon(1e-5) <= expected * (1 + 1e-5)


@pytest.mark.parametrize(("noise", "delta"), [(2e4, 1e-9), (5e4, 1e-10), (1e5, 1e-8)])
def test_tiny_losses_in_a_narrow_window_are_not_underestimated(noise, delta):
    """Terms of the size 1 / (interval * points) cancel there, and what rounding leaves of them has to be paid for."""
    loss = PrivacyLoss()
    loss.add(Gaussian(noise))
    library = own_pld(Gaussian(noise))
    assert loss.epsilon(delta) >= library.get_epsilon_for_delta(delta) * (1 - 1e-12)
