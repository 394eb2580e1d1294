"""Membership by shadow models: it finds who was remembered, and nothing where nobody was seen. Fair by construction."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

import cloister as cl
from cloister.client.losses import cross_entropy, mse
from cloister.client.population import Population
from cloister.errors import CloisterError
from cloister.studies.attacks import likelihood, shadows
from cloister.studies.attacks.attack import attack
from cloister.studies.attacks.candidates import LEFT_OUT, TEST, Candidates, candidates
from cloister.studies.attacks.found import in_steps, most_true_positives
from cloister.studies.attacks.membership import area_error, membership

CLIENTS, EACH = 10, 12
RECIPE = {"rounds": 40, "engine": "vectorized", "progress": False, "seed": 0}


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


@pytest.fixture(scope="module")
def parts():
    """Three disjoint random parts of the digits: who may be a member, who is beside them, and strangers."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    inputs, labels = digits.images.astype(np.float32)[order] / 16, digits.target[order]
    size = CLIENTS * EACH
    return [(inputs[at : at + size], labels[at : at + size]) for at in (0, size, 2 * size)]


def task_of(part, test):
    return cl.data.from_arrays(*part, np.repeat(np.arange(CLIENTS), EACH), test=test, model=net, classes=10)


def start_of(task):
    server = cl.server.optimizers.adam(0.03)
    return partial(cl.run, cl.methods.fedavg(lr=0.1, batch_size=EACH, local_epochs=1, server=server), task, **RECIPE)


@pytest.fixture(scope="module")
def known(parts):
    """The task, its candidates in pairs, and what 16 shadow models say of them."""
    task = task_of(parts[0], parts[1])
    rows = torch.arange(CLIENTS * EACH)
    pairs = Candidates(rows, task.test_inputs, task.test_labels, TEST)
    return task, pairs, *shadows.train(start_of(task), task, pairs, 16, 0)


def curve(run, known):
    task, pairs, found, saw = known
    module = shadows.WithPreprocessing(run.model, task.preprocessing, torch.float32).eval()
    target = shadows.confidences(module, task, pairs)
    ratio, middle = likelihood.scores(target, found, saw), len(pairs.rows)
    return membership("likelihood ratio", ratio[:middle], ratio[middle:], 16)


def test_who_was_remembered_is_found(known):
    found = curve(start_of(known[0])(), known)
    assert found.area - 3 * found.area_error > 0.55
    assert found.area > 0.65
    assert found.between["0.1"][0] > 0.1
    assert found.between["0.1"][0] <= found.at["0.1"] <= found.between["0.1"][1]


def test_a_model_that_saw_nobody_gives_nothing_away(parts, known):
    """The same shadows, and a model of the same recipe that was trained on strangers."""
    found = curve(start_of(task_of(parts[2], parts[1]))(), known)
    assert abs(found.area - 0.5) < 3 * found.area_error


def test_an_attack_knows_nothing_of_who_is_in(known):
    """Shadows hold one of each pair, half of them each; labels that only the run's test set has are in no shadow
    beyond that, and the run's own draw does not matter."""
    task, pairs, found, saw = known
    middle = len(pairs.rows)
    assert found.shape == saw.shape == (16, 2 * middle)
    assert (saw.sum(0) == 8).all()
    assert (saw[:, :middle] ^ saw[:, middle:]).all()
    stays = saw[3, :middle]
    swapped = pairs.swapped(task, stays)
    assert torch.equal(swapped.population.sizes, task.population.sizes)
    expected = torch.where(stays[:, None, None], task.population.inputs, pairs.inputs)
    assert torch.equal(swapped.population.inputs, expected)
    assert torch.equal(swapped.population.labels, torch.where(stays, task.population.labels, pairs.labels))
    assert len(found.unique(dim=0)) == 16  # seeds of their own


def test_a_likelihood_ratio_is_that_of_scipy():
    random = np.random.default_rng(1)
    for shadow_models in (8, 80):
        saw = np.stack([random.permutation(np.arange(shadow_models) % 2 == 0) for _ in range(5)], axis=1)
        phi, target = random.normal(size=(shadow_models, 5)) + 2 * saw, random.normal(size=5)
        means = [np.array([phi[who[:, i], i].mean() for i in range(5)]) for who in (saw, ~saw)]
        own = [np.array([phi[who[:, i], i].std(ddof=1) for i in range(5)]) for who in (saw, ~saw)]
        spread = own if shadow_models == 80 else [np.sqrt((s**2).mean()) for s in own]
        truth = np.subtract(*(stats.norm.logpdf(target, m, s) for m, s in zip(means, spread, strict=True)))
        found = likelihood.scores(*map(torch.from_numpy, (target, phi, saw)))
        assert found.numpy() == pytest.approx(truth)


def test_what_is_remembered_best_is_still_told_apart():
    """Where probabilities are 1 in any precision, the odds go on."""
    outputs = torch.tensor([[0.0, 0.0], [60.0, 0.0], [90.0, 0.0]])
    module, labels = torch.nn.Identity(), torch.zeros(3, dtype=torch.int64)
    found = likelihood.confidences(module, cross_entropy, outputs, labels)
    assert found.tolist() == pytest.approx([0.0, 60.0, 90.0])
    other = likelihood.confidences(module, mse(), outputs[:, :1], torch.ones(3, 1))
    assert other.tolist() == sorted(other.tolist(), reverse=True)


def test_the_error_of_an_area_is_that_of_repeated_draws():
    random = np.random.default_rng(2)
    draws = [(random.normal(size=60), random.normal(0.7, size=80)) for _ in range(400)]
    areas = [membership("x", torch.from_numpy(one), torch.from_numpy(other)).area for other, one in draws]
    assert np.mean([area_error(*draw) for draw in draws]) == pytest.approx(np.std(areas), rel=0.15)


def test_one_sample_or_another_is_two_steps_away():
    """Add or remove: with one sample, without any, with the other. The exact curve of randomized response, twice."""
    assert in_steps(0.5, 1e-3, 1) == (0.5, pytest.approx(1e-3))
    epsilon, delta = in_steps(0.5, 1e-3, 2)
    once = most_true_positives(0.01, 0.5, 1e-3)
    assert most_true_positives(0.01, epsilon, delta) == pytest.approx(most_true_positives(once, 0.5, 1e-3))


def test_others_are_of_the_same_clients_where_a_fraction_left_some_out(monkeypatch, parts):
    whole = task_of(parts[0], parts[1])
    keep = torch.arange(CLIENTS * EACH) % 4 == 0
    people = whole.population
    sizes = torch.full((CLIENTS,), EACH // 4)
    some = replace(
        whole, population=Population(people.inputs[keep], people.labels[keep], sizes.cumsum(0) - sizes, sizes)
    )
    asked = []

    def made(values):
        asked.append(values["fraction"])
        return type("Made", (), {"task": whole})

    monkeypatch.setattr("cloister.studies.attacks.candidates.build", made)
    keys = {"fraction": 0.25, "partition": "natural"}
    pairs = candidates(keys, some, 5000, 0)
    assert (asked, pairs.others, len(pairs.rows)) == ([1.0], LEFT_OUT, CLIENTS * EACH // 4)
    trained = {row.numpy().tobytes() for row in some.population.inputs}
    owner = {row.numpy().tobytes(): place // EACH for place, row in enumerate(people.inputs)}
    for row, other in zip(pairs.rows.tolist(), pairs.inputs, strict=True):
        assert other.numpy().tobytes() not in trained
        assert owner[other.numpy().tobytes()] == row // (EACH // 4)
    assert candidates({"fraction": 1.0}, some, 12, 0).others == TEST
    with pytest.raises(CloisterError, match="private validation"):
        candidates({**keys, "validation": "private"}, some, 12, 0)


@pytest.mark.parametrize("count", [2, 5, -4])
def test_numbers_of_shadows_that_make_no_sense_are_refused(tmp_path, count):
    with pytest.raises(CloisterError, match="shadows"):
        attack(tmp_path, shadows=count)
