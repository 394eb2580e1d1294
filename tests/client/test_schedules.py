"""Learning-rate schedules against torch's own, in every engine, at the server, and over an interruption."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import lr_scheduler as of_torch

import cloister as cl
from cloister.core.schedules import Schedule, rate_in
from cloister.errors import CloisterError
from cloister.round import cohort_total
from cloister.runs.config import build
from conftest import ENGINES, federation, flat_state, killed_in_round, toy_model, toy_task

ROUNDS = 12


def factors(schedule: Schedule, rounds: int = ROUNDS) -> list[float]:
    return [float(schedule.factor(torch.tensor(float(t), dtype=torch.float64))) for t in range(1, rounds + 1)]


def by_torch(make, rounds: int = ROUNDS) -> list[float]:
    """The learning rates that torch's scheduler gives to an optimizer of rate 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def warmed(optimizer, rounds: int, then):
    rising = of_torch.LinearLR(optimizer, start_factor=1 / (rounds + 1), total_iters=rounds)
    return of_torch.SequentialLR(optimizer, [rising, then], milestones=[rounds])


@pytest.mark.parametrize(
    ("schedule", "make"),
    [
        (Schedule(), lambda o: of_torch.ConstantLR(o, factor=1.0)),
        (Schedule("linear", 0, 0.2, 10), lambda o: of_torch.LinearLR(o, 1.0, 0.2, 10)),
        (Schedule("linear", 0, 0.0, 12), lambda o: of_torch.LinearLR(o, 1.0, 0.0, 12)),
        (Schedule("cosine", 0, 0.1, 12), lambda o: of_torch.CosineAnnealingLR(o, 12, eta_min=0.1)),
        (Schedule("exponential", 0, 0.01, 12), lambda o: of_torch.ExponentialLR(o, 0.01 ** (1 / 12))),
        (Schedule("step", 0, 0.5, 4), lambda o: of_torch.StepLR(o, 4, 0.5)),
        (Schedule("constant", 3), lambda o: of_torch.LinearLR(o, 1 / 4, 1.0, 3)),
        (Schedule("cosine", 3, 0.1, 12), lambda o: warmed(o, 3, of_torch.CosineAnnealingLR(o, 9, eta_min=0.1))),
        (Schedule("step", 2, 0.5, 4), lambda o: warmed(o, 2, of_torch.StepLR(o, 4, 0.5))),
    ],
    ids=lambda value: value.lr_schedule + str(value.lr_warmup) if isinstance(value, Schedule) else "",
)
def test_the_factor_is_that_of_torch(schedule, make):
    assert factors(schedule) == pytest.approx(by_torch(make), rel=1e-9)


@given(
    st.sampled_from(["linear", "cosine", "exponential"]),
    st.integers(0, 5),
    st.floats(0.01, 1.0),
    st.integers(6, 40),
)
def test_it_rises_then_falls_to_the_final_part_and_stays(name, warmup, final, rounds):
    found = factors(Schedule(name, warmup, final, rounds), rounds + 5)
    assert found[: warmup + 1] == sorted(found[: warmup + 1])
    assert found[warmup] == 1
    assert found[warmup:] == sorted(found[warmup:], reverse=True)
    assert found[rounds:] == pytest.approx([final] * 5)
    assert min(found) > 0, "no round that was paid for is thrown away"


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}{e.chunk}")
@pytest.mark.parametrize("keys", [{}, {"momentum": 0.5, "weight_decay": 0.1, "lr_decay": 0.9}], ids=["plain", "heavy"])
def test_a_scheduled_round_is_one_at_that_learning_rate(engine, keys):
    """In every engine: the update of round 5 is that of a constant learning rate of the same size."""
    task, plan = toy_task(), {"lr_schedule": "cosine", "lr_warmup": 2, "lr_final": 0.1, "lr_rounds": 9}
    cosine = 0.1 + 0.9 * (1 + math.cos(math.pi * (5 - 1 - 2) / (9 - 2))) / 2
    found = []
    for rate, schedule in ((0.3, plan), (0.3 * cosine, {})):
        method = cl.methods.fedavg(lr=rate, batch_size=4, local_steps=3, **keys, **schedule)
        fed, w = federation(method, task=task, model=toy_model(task))
        found.append(cohort_total(fed, engine, 5, w, torch.arange(task.clients))[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)
    assert found[0].norm() > 0.01


SAMPLE = {"lr": 0.3, "batch_size": 4, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    "make",
    [
        lambda lr, **more: cl.methods.pfl(**{**SAMPLE, "lr": lr}, **more),
        lambda lr, **more: cl.methods.fed_spa(**{**SAMPLE, "lr": lr}, local_steps=2, **more),
        lambda lr, **more: cl.methods.dp_fed(**{**SAMPLE, "lr": lr}, local_steps=2, **more),
        lambda lr, **more: cl.methods.adap_dp_fl(**{**SAMPLE, "lr": lr}, clip_norm=1.0, noise_decay=1.0, **more),
        lambda lr, **more: cl.methods.dp_fl(**{**SAMPLE, "lr": lr}, **more),
    ],
    ids=["pfl", "fed_spa", "dp_fed", "adap_dp_fl", "dp_fl"],
)
def test_private_steps_follow_the_schedule(make):
    found = []
    for method in (make(0.3, lr_schedule="linear", lr_final=0.2, lr_rounds=4), make(0.3 * (1 - 0.8 * 2 / 4))):
        fed, w = federation(method)
        found.append(cohort_total(fed, ENGINES[0], 3, w, torch.arange(8))[0])
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def play(server, means) -> tuple[torch.Tensor, dict]:
    w = torch.zeros(2, dtype=torch.float64)
    state = server.init(w)
    for mean in means:
        w, state = server.update(w, mean, state, None)
    return w, state


def test_the_server_follows_a_schedule():
    means = [torch.tensor([1.0, -2.0], dtype=torch.float64) * t for t in (1, 2, 3)]
    halving = {"lr_schedule": "step", "lr_final": 0.5, "lr_rounds": 1}
    w, state = play(cl.server.sgd(2.0, **halving), means)
    torch.testing.assert_close(w, 2 * (means[0] + means[1] / 2 + means[2] / 4))
    assert state == {"rounds": torch.tensor(3.0, dtype=torch.float64)}
    w, _ = play(cl.server.sgd(1.0, 0.9, **halving), means[:2])
    torch.testing.assert_close(w, means[0] + (0.9 * means[0] + means[1]) / 2)
    steps = [play(cl.server.adam(0.1), means[:n])[0] for n in (1, 2)]
    scheduled, _ = play(cl.server.adam(0.1, **halving), means[:2])
    torch.testing.assert_close(scheduled, steps[0] + (steps[1] - steps[0]) / 2)


def test_cpsgd_steps_by_the_schedule_at_the_server():
    method = cl.methods.cpsgd(lr=0.5, noise_multiplier=20.0, lr_schedule="step", lr_final=0.5, lr_rounds=1)
    means = [torch.ones(2, dtype=torch.float64)] * 2
    assert play(method.server, means)[0].tolist() == [0.75, 0.75]


def test_without_a_schedule_nothing_is_added():
    """Neither to the state nor to what is hashed into a run's identity, and so into its noise."""
    method = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1)
    assert flat_state(method.init(torch.zeros(3))) == {}
    assert not [name for part in (method.local, method.server) for name in part.settings if "schedule" in name]
    assert method.server.settings == {"lr": 1.0, "momentum": 0.0}
    scheduled = cl.methods.dp_fedavg(clip_norm=1.0, local_steps=1, lr_warmup=2, server=cl.server.sgd(lr_warmup=3))
    expected = {"lr_schedule": "constant", "lr_warmup": 2, "lr_final": 0.0, "lr_rounds": None}
    assert scheduled.local.settings.items() >= expected.items()
    assert scheduled.server.settings["lr_warmup"] == 3


def test_an_interrupted_run_goes_on_with_its_schedules(tmp_path, monkeypatch):
    method = cl.methods.dp_fedavg(
        clip_norm=0.5,
        lr=0.5,
        local_steps=2,
        noise_multiplier=1.0,
        lr_schedule="cosine",
        lr_rounds=6,
        server=cl.server.adam(0.1, lr_schedule="linear", lr_warmup=2, lr_rounds=6),
    )
    keys = {"rounds": 6, "delta": 1e-3, "engine": "loop", "checkpoint_every": 2, "progress": False}
    whole = cl.run(method, toy_task(), **keys, folder=tmp_path / "whole")
    with killed_in_round(monkeypatch, 4):
        cl.run(method, toy_task(), **keys, folder=tmp_path / "cut")
    again = cl.run(method, toy_task(), **keys, folder=tmp_path / "cut", resume=True)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_on_the_command_line_schedules_run_over_the_rounds_of_the_run():
    words = {"local_steps": 1, "clip_norm": 1.0, "sampling_rate": 0.5, "rounds": 7, "noise_multiplier": 1.0}
    made = build({**words, "lr_schedule": "cosine", "server_lr_schedule": "linear"}).values
    assert (made["lr_rounds"], made["server_lr_rounds"]) == (7, 7)
    given = build({**words, "lr_schedule": "cosine", "lr_rounds": 3}).values
    assert given["lr_rounds"] == 3
    assert "server_lr_rounds" not in given
    assert "lr_rounds" not in build(words).values


def test_the_learning_rate_of_a_round_follows_from_the_settings():
    local = cl.client.sgd(lr=0.5, local_steps=1, lr_decay=0.9, lr_schedule="linear", lr_rounds=4).settings
    assert rate_in(local, 3) == pytest.approx(0.5 * 0.9**2 * 0.5)
    assert rate_in(cl.methods.pfl(lr=0.3).local.settings, 9) == 0.3
    assert rate_in({"name": "other"}, 1) is None


USUAL = {"clip_norm": 1.0, "local_steps": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_schedule="cosine"), "Expected lr_rounds for a learning rate"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_schedule="cos"), "lr_schedule to be one of constant, linear"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_schedule=3), "lr_schedule to be one of"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_warmup=-1), "lr_warmup to be a whole number of at least 0"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_warmup=2.5), "lr_warmup to be a whole number"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_final=0.5), "no lr_final or lr_rounds for a constant schedule"),
        (lambda: cl.methods.dp_fedavg(**USUAL, lr_rounds=5), "no lr_final or lr_rounds for a constant schedule"),
        (lambda: Schedule("linear", 0, 1.5, 5), "0 <= lr_final <= 1"),
        (lambda: Schedule("exponential", 0, 0.0, 5), "0 < lr_final <= 1"),
        (lambda: Schedule("step", 0, 0.0, 5), "0 < lr_final <= 1"),
        (lambda: Schedule("step", 0, 0.5), "rounds that lie between two drops"),
        (lambda: Schedule("linear", 5, 0.5, 5), "lr_rounds > lr_warmup, found 5"),
        (lambda: Schedule("linear", 0, 0.5, 0), "lr_rounds to be a whole number of at least 1"),
        (lambda: cl.server.sgd(lr_schedule="cosine"), "Expected server_lr_rounds"),
        (lambda: cl.server.adam(lr_schedule="warm"), "server_lr_schedule to be one of"),
        (lambda: cl.methods.pfl(lr_schedule="linear"), "Expected lr_rounds"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(make, message):
    with pytest.raises(CloisterError, match=r"^Expected [^\n]*$") as found:
        make()
    assert message in str(found.value)


def test_a_method_of_one_round_has_no_schedule():
    with pytest.raises(TypeError, match="lr_schedule"):
        cl.methods.ae_dpfl(local_steps=1, lr_schedule="cosine")
