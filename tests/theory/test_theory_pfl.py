"""PFL's theorems against numbers worked out by hand and against training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon
from cloister.privacy.events import PoissonGaussian
from cloister.theory import pfl


def test_theorem_1_is_the_largest_epsilon_of_disjoint_parts():
    assert pfl.parallel_composition([0.5, 2.0, 1.0], [range(3), range(3, 5), [9]]) == 2.0


def test_theorem_1_refuses_parts_that_overlap():
    with pytest.raises(CloisterError, match="Expected disjoint parts, found '1 samples with several clients'"):
        pfl.parallel_composition([1.0, 1.0], [{1, 2}, {2, 3}])
    with pytest.raises(CloisterError, match="an epsilon for every client"):
        pfl.parallel_composition([1.0], [{1}, {2}])


def test_observation_1_by_hand_and_beside_the_true_price():
    """Smaller than in the end, and by the square root in the middle of the run; not so in its beginning."""
    assert pfl.intermediate_epsilon(3.0, 16, 4) == pytest.approx(1.5)
    true = [epsilon(PoissonGaussian(0.96, 1 / 94), 94 * done, 1e-5) for done in (1, 10, 20)]
    assert true == sorted(true)
    claimed = [pfl.intermediate_epsilon(true[-1], 20, done) for done in (1, 10)]
    assert claimed[1] == pytest.approx(true[1], rel=0.01)
    assert claimed[0] < 0.8 * true[0]


def test_the_mean_norm_of_noise():
    """One dimension: sqrt(2/pi). Two: sqrt(pi/2). Many: sqrt(N)."""
    assert pfl.mean_noise_norm(2.0, 3.0, 1) == pytest.approx(6 * math.sqrt(2 / math.pi))
    assert pfl.mean_noise_norm(1.0, 1.0, 2) == pytest.approx(math.sqrt(math.pi / 2))
    assert pfl.mean_noise_norm(1.0, 1.0, 10**6) == pytest.approx(1000, rel=1e-6)


def test_theorem_2_by_hand():
    """Two dimensions, E 3, alpha .1, C 2, sigma 1, L 4, beta 5, alpha_1 .2, C_1 7: 5*3*(.2 + 1.4 + .025*2*1.2533)."""
    found = pfl.degradation(3, 0.1, 2.0, 1.0, 4, 2, 5.0, 0.2, 7.0)
    assert found == pytest.approx(15 * (0.2 + 1.4 + 0.05 * math.sqrt(math.pi / 2)))


def test_theorem_2_bounds_what_training_does():
    """DP-SGD beside SGD on squares, averaged over clients in every round, against the bound over all rounds. With the
    bound's own expectation of the noise, the mean of 200 runs lies far below it."""
    draw = np.random.default_rng(5)
    clients, rounds, local, batch, size = 4, 3, 2, 8, 6
    lr, clip, sigma, largest = 0.1, 0.5, 1.0, 20.0
    targets = draw.normal(size=(clients, 50, size))

    def distance() -> float:
        private, plain = np.zeros(size), np.zeros(size)
        for _ in range(rounds):
            models = []
            for own in targets:
                one, other = private.copy(), plain.copy()
                for _ in range(local):
                    chosen = own[draw.choice(50, batch, replace=False)]
                    gradients = one - chosen
                    scale = np.minimum(1, clip / np.linalg.norm(gradients, axis=1))
                    one -= lr / batch * ((gradients * scale[:, None]).sum(0) + draw.normal(size=size) * sigma * clip)
                    other -= lr * (other - chosen).mean(0)
                    assert np.linalg.norm(other - chosen, axis=1).max() <= largest
                models.append((one, other))
            private, plain = (np.mean([pair[which] for pair in models], axis=0) for which in (0, 1))
        return float(np.linalg.norm(private - plain))

    found = np.mean([distance() for _ in range(200)])
    assert 0 < found <= pfl.degradation(local, lr, clip, sigma, batch, size, 1.0, lr, largest, rounds=rounds)


def test_theorem_2_prefers_one_epoch_in_one_round_and_nothing_over_all_rounds():
    def bound(epochs: int, rounds: int = 1) -> float:
        return pfl.degradation(epochs, 0.3, 1.0, 1.0, 64, 1000, 1.0, 0.3, 5.0, rounds=rounds)

    assert bound(1) < bound(2) < bound(20)
    assert bound(1, 20) == pytest.approx(bound(20, 1))


def test_utility_is_a_share_of_models():
    """|0.3 - 0.25| = 0.05 is not below 0.05."""
    assert pfl.utility([0.25, 0.375, 0.5], 0.25, 0.125) == pytest.approx(1 / 3)
    with pytest.raises(CloisterError, match="0 <= distance <= 1"):
        pfl.utility([0.1], 0.1, 1.5)


def test_theorem_3_by_hand():
    """1 - (0.3 * 2 / 0.5)^2 / 12 = 1 - 1.44/12."""
    assert pfl.least_utility(12, 0.5, 0.3, 2.0) == pytest.approx(0.88)
    assert pfl.least_utility(1, 0.1, 1.0, 1.0) == 0.0


def test_theorem_3_holds_for_models_as_it_assumes():
    """Models with mean theta* and total variance sigma^2, a loss that is the distance from theta* (1-Lipschitz). The
    bound is 0.5; the share among 20,000 means of 8 models is far above it, and would not be for a biased one."""
    draw = np.random.default_rng(11)
    deviation, clients, distance = 0.4, 8, 0.2
    models = draw.normal(size=(20_000, clients, 3)) * deviation / math.sqrt(3)
    least = pfl.least_utility(clients, distance, deviation, 1.0)
    assert least == pytest.approx(0.5)
    assert pfl.utility(np.linalg.norm(models.mean(1), axis=1), 0.0, distance) >= least
    assert pfl.utility(np.linalg.norm(models.mean(1) + 0.3, axis=1), 0.0, distance) < least
