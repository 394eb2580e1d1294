from __future__ import annotations

import pytest
import torch

from cloister.errors import CloisterError
from cloister.server.optimizers import adam, sgd


def play(server, means):
    w = torch.zeros(3, dtype=torch.float64)
    state = server.init(w)
    for mean in means:
        w, state = server.update(w, mean, state, None)
    return w


MEANS = [torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64), torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)]


def test_sgd_adds_the_mean():
    assert torch.allclose(play(sgd(0.5), MEANS), 0.5 * (MEANS[0] + MEANS[1]))


def test_momentum_is_heavy_ball():
    assert torch.allclose(play(sgd(0.5, 0.9), MEANS), 0.5 * (MEANS[0] + (0.9 * MEANS[0] + MEANS[1])))


def test_adam_as_in_fed_spa():
    """Computed by hand for one coordinate: u squares itself, nothing is bias-corrected, v starts at kappa^2."""
    lr, b1, b2, tau = 0.1, 0.9, 0.99, 1e-3
    u1 = (1 - b1) * 1.0
    v1 = b2 * tau**2 + (1 - b2) * u1**2
    w1 = lr * u1 / (v1**0.5 + tau)
    u2 = b1 * u1 + (1 - b1) * 0.5
    v2 = b2 * v1 + (1 - b2) * u2**2
    w2 = w1 + lr * u2 / (v2**0.5 + tau)
    assert play(adam(lr, b1, b2, tau), MEANS)[0].item() == pytest.approx(w2, rel=1e-12)


def test_the_second_moment_may_start_above_kappa_squared():
    """Algorithm 1 of Fed-SPA asks for v_{-1} >= kappa^2: by hand, for the second coordinate."""
    lr, b1, b2, tau, v0 = 0.1, 0.9, 0.99, 1e-2, 0.3
    u1 = (1 - b1) * -2.0
    v1 = b2 * v0 + (1 - b2) * u1**2
    u2 = b1 * u1
    v2 = b2 * v1 + (1 - b2) * u2**2
    expected = lr * u1 / (v1**0.5 + tau) + lr * u2 / (v2**0.5 + tau)
    assert play(adam(lr, b1, b2, tau, v0=v0), MEANS)[1].item() == pytest.approx(expected, rel=1e-12)
    assert play(adam(lr, b1, b2, tau), MEANS)[1].item() != pytest.approx(expected, rel=1e-3)


def test_the_least_second_moment_is_the_default_and_less_is_refused():
    default, given = adam(tau=1e-2), adam(tau=1e-2, v0=1e-2**2)
    assert torch.equal(play(default, MEANS), play(given, MEANS))
    assert "v0" not in default.settings, "older descriptions have none"
    assert given.settings["v0"] == 1e-2**2
    with pytest.raises(CloisterError, match=r"v0 >= tau\^2 = 0.0001, as Fed-SPA demands, found 9e-05: raise v0"):
        adam(tau=1e-2, v0=9e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: sgd(0.0),
        lambda: sgd(1.0, 1.0),
        lambda: adam(tau=0.0),
        lambda: adam(beta1=1.0),
        lambda: adam(lr=-1.0),
        lambda: adam(v0=-1.0),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(CloisterError, match="Expected"):
        make()
