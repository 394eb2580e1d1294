"""Weights by data size in whole runs: what certificates, plans and descriptions say, and that runs resume."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import cloister as cl
from cloister.errors import CloisterError
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.description import RunDescription
from cloister.privacy.events import PoissonGaussian, ReleasedSizeGaussian
from conftest import killed_in_round, prepared, toy_task

LOCAL = {"clip_norm": 0.5, "lr": 0.2, "local_steps": 2, "batch_size": 4}
CAPPED = {"client_weights": "size", "weight_cap": 5.0, "mean_weight": 0.6}
STEPS = {"clip_norm": 0.5, "batch_size": 4, "noise_multiplier": 2.0}


def go(method, cohort=None, **more) -> cl.Run:
    cohort = cl.poisson(0.5) if cohort is None else cohort
    more = {"rounds": 3, "delta": 1e-3, "engine": "loop", "progress": False, **more}
    return cl.run(method, toy_task(), cohort=cohort, **more)


def text_of(run: cl.Run) -> str:
    return " ".join(str(run.certificate).split())


def test_a_certificate_of_capped_weights_names_their_constants():
    run = go(cl.methods.dp_fedavg(**LOCAL, **CAPPED, noise_multiplier=2.0))
    assert run.epsilon == pytest.approx(epsilon_of(PoissonGaussian(2.0, 0.5), 3, 1e-3), rel=1e-6)
    assert "denominator: 4, constant, times the declared mean weight 0.6" in text_of(run)
    assert "weight_cap 5 and mean_weight 0.6 count as public" in text_of(run)
    assert run.certificate.sensitivity == 0.5


def test_a_certificate_says_that_sizes_were_declared_public():
    declared = go(cl.methods.pfl(**STEPS, client_weights="size", public_sizes=True), cl.full(), rounds=1)
    assert "were declared public (public_sizes = true)" in text_of(declared)
    assert "denominator: the samples of all who took part" in text_of(declared)
    replaced = go(cl.methods.pfl(**STEPS, client_weights="size", batch_sampling="fixed_size"), cl.full(), rounds=1)
    assert "which weigh their updates: they count as public" in text_of(replaced)
    equal = go(cl.methods.pfl(**STEPS), cl.full(), rounds=1)
    assert "which weigh" not in text_of(equal)
    assert "denominator: how many took part" in text_of(equal)
    assert declared.epsilon == equal.epsilon
    assert not torch.equal(*(torch.cat([p.flatten() for p in run.model.parameters()]) for run in (declared, equal)))


def test_sizes_that_nobody_declared_are_refused_before_anything_is_written(tmp_path):
    folder = tmp_path / "run"
    for more in ({"epsilon": 3.0}, {}):
        noise = {} if "epsilon" not in more else {"noise_multiplier": None}
        with pytest.raises(CloisterError, match="public_sizes = true"):
            go(cl.methods.pfl(**{**STEPS, **noise}, client_weights="size"), cl.full(), folder=folder, **more)
    assert not folder.exists()
    with pytest.raises(CloisterError, match="public_sizes = true"):
        cl.plan(cl.methods.pfl(**STEPS, client_weights="size"), rounds=2, sizes=[30, 20], delta=1e-5)


def test_blur_as_published_is_priced_as_a_release_of_sizes():
    published = go(cl.methods.blur(**LOCAL, noise_multiplier=2.0, mode="as_published"))
    assert published.epsilon == pytest.approx(epsilon_of(ReleasedSizeGaussian(2.0, 0.5, 8), 3, 1e-3), rel=1e-6)
    claimed = epsilon_of(PoissonGaussian(2.0, 0.5), 3, 1e-3, "rdp")
    assert published.certificate.claimed["epsilon"] == pytest.approx(claimed, rel=1e-9)
    text = text_of(published)
    assert "replace one client" in text
    assert "the actual size of the cohort in every round" in text
    assert "denominator: how many clients were drawn" in text
    assert "constant denominator" not in text
    sound = go(cl.methods.blur(**LOCAL, noise_multiplier=2.0))
    assert sound.epsilon == pytest.approx(epsilon_of(PoissonGaussian(2.0, 0.5), 3, 1e-3), rel=1e-6)
    assert published.epsilon > 1.5 * sound.epsilon


def test_a_target_is_kept_by_runs_and_plans_alike():
    made = cl.methods.blur(**LOCAL, mode="as_published")
    planned = cl.plan(made, rounds=3, cohort=cl.poisson(0.5), clients=8, epsilon=2.0, delta=1e-3)
    run = go(made, epsilon=2.0)
    assert 1.9 < run.epsilon <= 2.0
    assert planned.noise_multiplier == run.certificate.noise_multiplier
    assert "how many clients were drawn" in str(planned)


def test_a_plan_counts_what_clients_weigh():
    settings = {"rounds": 3, "clients": 100, "delta": 1e-5, "epsilon": 2.0}
    equal = cl.plan(cl.methods.dp_fedavg(**LOCAL), **settings)
    weighted = cl.plan(cl.methods.dp_fedavg(**LOCAL, **CAPPED), **settings)
    assert weighted.noise_multiplier == equal.noise_multiplier
    assert weighted.signal.run == pytest.approx(0.6 * equal.signal.run)
    assert "100, constant, times the declared mean weight 0.6" in str(weighted)
    assert "denominator" not in str(equal)


def test_descriptions_of_other_runs_are_what_they_were():
    plain = prepared(cl.methods.dp_fedavg(**LOCAL, noise_multiplier=1.0), toy_task()).description
    assert "divided_by" not in plain.to_json()
    weighted = prepared(cl.methods.dp_fedavg(**LOCAL, **CAPPED, noise_multiplier=1.0), toy_task()).description
    assert RunDescription.from_json(json.loads(json.dumps(weighted.to_json()))) == weighted
    other = prepared(
        cl.methods.dp_fedavg(**LOCAL, **{**CAPPED, "weight_cap": 6.0}, noise_multiplier=1.0), toy_task()
    ).description
    assert len({one.configuration_hash for one in (plain, weighted, other)}) == 3, "each has noise of its own"


@pytest.mark.parametrize(
    "method",
    [
        cl.methods.fedavg(lr=0.2, local_steps=2, client_weights="size"),
        cl.methods.adaptive_clipping(**LOCAL, **CAPPED, noise_multiplier=2.0),
        cl.methods.blur(**LOCAL, noise_multiplier=2.0, mode="as_published"),
    ],
    ids=lambda method: method.name,
)
def test_runs_resume_to_the_same_bits(method, tmp_path, monkeypatch):
    whole = go(method, folder=tmp_path / "whole", rounds=4)
    with killed_in_round(monkeypatch, 3):
        go(method, folder=tmp_path / "run", rounds=4)
    resumed = go(method, folder=tmp_path / "run", rounds=4, resume=True)
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_command_line_has_the_keys(command):
    words = ["clip_norm=1", "local_steps=1", "rounds=1", "epsilon=4", "delta=1e-3", "sampling_rate=0.5"]
    refused = command("run", "method=dp_fedavg", *words, "client_weights=size")
    assert refused.returncode == 2
    assert "Expected weight_cap" in refused.stderr
    refused = command("run", "method=ae_dpfl", *words[1:], "client_weights=size")
    assert "a vote has no weight" in refused.stderr
    planned = command("plan", "method=dp_fedavg", *words, "clients=50", "client_weights=size", "weight_cap=20")
    assert planned.returncode == 0
    help_of = command("methods", "dp_fedavg").stdout
    assert "weight_cap" in help_of
    assert "public_sizes" in command("methods", "pfl").stdout


def test_a_client_without_samples_has_no_part_in_fedavg():
    task = toy_task((7, 0, 5))
    gone = toy_task((7, 5))
    runs = [
        cl.run(
            cl.methods.fedavg(lr=0.2, local_epochs=1, batch_size=20, client_weights="size"),
            replace(one, population=replace(one.population, inputs=task.population.inputs)),
            rounds=2,
            engine="loop",
            progress=False,
        )
        for one in (task, gone)
    ]
    for one, other in zip(*(run.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(one, other)
