from __future__ import annotations

import pytest

from cloister.errors import CloisterError
from cloister.runs.plan import plan
from cloister.runs.report import plan_plot, plan_summary, plan_table


def test_there_and_back():
    there = plan(3400, 1000, 1 / 3400, sampling_rate=0.04, epsilon=2.0, points=4)
    assert there.noise_multiplier == pytest.approx(2.18, abs=0.01)
    assert 1.99 < there.epsilon <= 2.0
    back = plan(3400, 1000, 1 / 3400, sampling_rate=0.04, noise_multiplier=there.noise_multiplier, points=4)
    assert back.epsilon == pytest.approx(there.epsilon, rel=1e-9)


def test_fixed_cohorts_are_planned_under_replace_one():
    planned = plan(3400, 1000, 1 / 3400, clients_per_round=136, noise_multiplier=2.38, points=2)
    assert planned.epsilon == pytest.approx(6.1, abs=0.05)
    assert "replace one client" in planned.relation


def test_everyone_is_planned_without_amplification():
    sampled = plan(100, 10, 1e-3, sampling_rate=0.1, noise_multiplier=2.0, points=2)
    full = plan(100, 10, 1e-3, noise_multiplier=2.0, points=2)
    assert full.epsilon > 2 * sampled.epsilon


def test_epsilon_rises_over_the_rounds():
    curve = plan(300, 60, 1e-3, sampling_rate=0.5, noise_multiplier=5.0, points=6).curve
    assert [point.round for point in curve] == [1, 10, 20, 30, 40, 50, 60]
    spent = [point.epsilons[0] for point in curve]
    assert spent == sorted(spent)
    assert all(own < strict for own, strict in (point.epsilons for point in curve))


def test_signal_to_noise_by_hand():
    worst, best = plan(300, 1, 1e-3, sampling_rate=0.5, noise_multiplier=5.0, parameters=400, points=1).signal_to_noise
    assert best == pytest.approx(150 / (5 * 20))
    assert worst == pytest.approx(best / 150**0.5)


@pytest.mark.parametrize(
    ("delta", "says"),
    [(1 / 300, "weak"), (1e-2, "weak"), (1e-3, "which is a lot"), (1e-6, "may fail with probability")],
)
def test_delta_is_explained(delta, says):
    assert says in plan(300, 1, delta, sampling_rate=0.5, noise_multiplier=5.0, points=1).delta_means


def test_a_plan_can_be_shown_and_drawn(tmp_path):
    planned = plan(300, 20, 1e-3, sampling_rate=0.5, epsilon=2.0, points=3)
    plan_plot(planned, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert len(plan_table(planned).rows) == 4
    assert {name for name, _ in plan_summary(planned)} >= {"noise multiplier", "epsilon", "delta", "signal / noise"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 2.0, "noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({}, "either epsilon or noise_multiplier"),
        ({"epsilon": 2.0, "clients_per_round": 5}, "a sampling_rate or clients_per_round"),
        ({"noise_multiplier": 0.0}, "noise_multiplier > 0"),
        ({"epsilon": 2.0, "clients": 0}, "clients"),
        ({"epsilon": 2.0, "sampling_rate": 2.0}, "rate <= 1"),
        ({"epsilon": 2.0, "sampling_rate": 5e-324}, "sampling_rate >= 1e-18"),
        ({"epsilon": 10**400}, "epsilon between"),
        ({"epsilon": 1e6}, "epsilon <= 300"),
        ({"noise_multiplier": 10**400}, "noise_multiplier between"),
        ({"noise_multiplier": 1e-9}, "between 0.001 and 1e.06"),
        ({"epsilon": 2.0, "rounds": 10**40}, "rounds to be at most"),
    ],
)
def test_bad_plans_are_refused(change, message):
    with pytest.raises(CloisterError, match=message):
        plan(**{"clients": 300, "rounds": 10, "delta": 1e-3, "sampling_rate": 0.5, **change})
