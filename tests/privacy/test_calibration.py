from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.budgets import Budget
from cloister.privacy.calibration import calibrate
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger


@settings(max_examples=4, deadline=None)
@given(
    sampling_rate=st.floats(0.02, 1),
    rounds=st.integers(1, 100),
    epsilon=st.floats(0.3, 20),
    delta=st.sampled_from([1e-2, 1e-3, 1e-5]),
    kind=st.sampled_from(["poisson", "fixed_size", "full"]),
)
def test_never_less_private_than_asked_and_hardly_more(sampling_rate, rounds, epsilon, delta, kind):
    def event(noise: float):
        if kind == "full":
            return Gaussian(noise)
        return (
            PoissonGaussian(noise, sampling_rate)
            if kind == "poisson"
            else FixedSizeGaussian(noise, max(1, int(100 * sampling_rate)), 100)
        )

    noise = calibrate(event, rounds, epsilon, delta)
    spent = epsilon_of(event(noise), rounds, delta)
    assert spent <= epsilon
    assert epsilon_of(event(noise * 0.99), rounds, delta) > epsilon, "one per cent less noise would not do"


def test_published_noise_multipliers():
    """EMNIST, 3400 writers, rate 0.04, 1000 rounds, delta 1/3400: 2.18 / 1.35 / 1.07 / 0.925 for 2 / 4 / 6 / 8."""
    for epsilon, noise in [(2, 2.18), (4, 1.35), (6, 1.07), (8, 0.925)]:
        assert calibrate(lambda z: PoissonGaussian(z, 0.04), 1000, epsilon, 1 / 3400) == pytest.approx(noise, abs=0.006)


def test_an_epsilon_out_of_reach_is_said_so():
    with pytest.raises(CloisterError, match="some noise can reach"):
        calibrate(Gaussian, 100_000, 1e-4, 1e-9)


def test_a_lavish_epsilon_still_returns_affordable_noise():
    noise = calibrate(Gaussian, 1, 1e8, 1e-5)
    assert 0 < noise < 0.01
    assert epsilon_of(Gaussian(noise), 1, 1e-5) <= 1e8


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf")])
def test_epsilon_is_positive(epsilon):
    with pytest.raises(CloisterError, match="epsilon > 0"):
        calibrate(Gaussian, 10, epsilon, 1e-5)


def test_the_last_round_is_affordable_even_at_a_tiny_delta():
    """Composing round by round moves a little more probability to infinity than composing at once."""
    delta, rounds = 1.01e-10, 60
    noise = calibrate(lambda z: PoissonGaussian(z, 0.3), rounds, 2.0, delta)
    ledger = Ledger.create(None, "s", {"client": Budget(2.0, delta)})
    for number in range(1, rounds + 1):
        ledger.charge("client", PoissonGaussian(noise, 0.3), round=number, repeatable=True)
