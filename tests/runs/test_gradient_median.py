"""G / sqrt(d) as the median of absolute gradient values (paper 002): paid for, or public, and never for free."""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import cloister as cl
from cloister.client import gradient_median as medians
from cloister.client.gradient_median import BINS, HIGHEST, LOWEST, edges, histograms, median_of, public_median
from cloister.engine import Loop
from cloister.errors import CloisterError, Note
from cloister.privacy.accountant import epsilon as epsilon_of
from cloister.privacy.events import FixedSizeGaussian, Gaussian, PoissonGaussian
from cloister.privacy.ledger import Ledger
from cloister.privacy.unit import sample_account
from cloister.round import cohort_total, queries
from cloister.runs.folder import RunFolder
from cloister.runs.statistics import first_answer
from conftest import ENGINES, Killed, federation, killed_in_round, prepared, toy_task

TASK = toy_task(sizes=(40, 40, 40))
LOCAL = {"lr": 0.3, "batch_size": 8, "local_steps": 2}
MEDIAN = cl.methods.fed_spa(bound="median", **LOCAL)
MODEL = torch.nn.Linear(6, 3)


def gradients(task=TASK, model=MODEL) -> np.ndarray:
    """Of every sample of a linear softmax model, by hand: (p - y) x, and p - y for the offset."""
    w, b = (p.detach().double().numpy() for p in model.parameters())
    x, y = task.population.inputs.double().numpy(), task.population.labels.numpy()
    scores = np.exp(x @ w.T + b)
    wrong = scores / scores.sum(1, keepdims=True) - np.eye(3)[y]
    return np.concatenate([(wrong[:, :, None] * x[:, None, :]).reshape(len(x), -1), wrong], 1)


def ready(method=MEDIAN, task=TASK, **more):
    usual = {"epsilon": 3.0, "model": MODEL, "dtype": "float64"}
    return prepared(method, task, **{**usual, **more})


def go(method=MEDIAN, task=TASK, **more):
    usual = {"rounds": 3, "epsilon": 3.0, "delta": 1e-3, "engine": "loop", "progress": False, "model": MODEL}
    return cl.run(method, task, **{**usual, **more})


def weights(run) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(run.model.parameters())


# ---- what is asked ----------------------------------------------------------------------------------------------


def test_a_sample_contributes_the_shares_of_its_own_gradient_in_every_bin():
    made = ready()
    people, cuts = made.fed.population, edges().numpy()
    found = histograms(made.fed.objective, made.w, people.inputs, people.labels).numpy()
    assert len(cuts) == BINS
    assert (cuts[0], cuts[-1]) == (pytest.approx(LOWEST), pytest.approx(HIGHEST))
    for row, gradient in zip(found, gradients(), strict=True):
        expected = [np.mean(np.abs(gradient) <= cuts[0])]
        expected += [np.mean((a < np.abs(gradient)) & (np.abs(gradient) <= b)) for a, b in itertools.pairwise(cuts)]
        expected += [np.mean(np.abs(gradient) > cuts[-1])]
        np.testing.assert_allclose(row, expected, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e30, -1e30, math.inf, math.nan])
def test_a_sample_contributes_no_more_than_one_whatever_it_is(value):
    made = ready()
    inputs = torch.full((2, 6), value, dtype=torch.float64)
    found = histograms(made.fed.objective, made.w, inputs, torch.tensor([0, 2]))
    assert found.isfinite().all()
    assert (found.norm(dim=1) <= 1 + 1e-12).all()


def test_without_noise_it_is_the_median_up_to_a_bin():
    made = ready(cl.methods.fed_spa(bound="median", noise_multiplier=0.0, **LOCAL), epsilon=None, delta=None)
    released = first_answer(made, Ledger.create(None, "test", {}))
    exact = np.median(np.abs(gradients()))
    assert float(released["median"]) == pytest.approx(exact, rel=0.1)
    width = edges()[1] / edges()[0]
    assert exact / width < float(released["median"]) < exact * width


@given(st.lists(st.floats(-0.2, 0.4), min_size=BINS + 1, max_size=BINS + 1))
def test_any_answer_gives_a_bound_within_the_public_range(shares):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        found = median_of(torch.tensor(shares, dtype=torch.float64))
    assert LOWEST * (1 - 1e-9) <= found <= HIGHEST * (1 + 1e-9)


def test_the_median_is_where_a_half_is_passed():
    shares = torch.zeros(BINS + 1, dtype=torch.float64)
    shares[20], shares[40] = 0.3, 0.7
    cuts = edges()
    expected = float(cuts[39]) * float(cuts[40] / cuts[39]) ** (0.2 / 0.7)
    assert median_of(shares) == pytest.approx(expected, rel=1e-12)
    shares[0], shares[40] = 0.6, 0.1
    with pytest.warns(Note, match=r"half of all gradient values are below 1e-07"):
        assert median_of(shares) == pytest.approx(float(cuts[0]))


def test_that_shares_add_up_halves_the_variance_and_a_drowned_median_is_told():
    """Of values spread evenly over the bins, whose median is the middle of the middle bin: 300 noisy answers."""
    random, found, walked = np.random.default_rng(0), [], []
    cuts, middle = np.log(edges().numpy()), BINS // 2
    for _ in range(300):
        shares = np.full(BINS + 1, 1 / (BINS + 1)) + 0.01 * random.normal(size=BINS + 1)
        found.append(math.log(median_of(torch.from_numpy(shares))))
        walked.append(cuts[min(int(np.argmax(np.cumsum(shares) >= 0.5)), BINS - 1)])
    assert abs(np.mean(found) - (cuts[middle - 1] + cuts[middle]) / 2) < 6 * np.std(found) / math.sqrt(300)
    assert np.var(found) < 0.7 * np.var(walked), "a walk from below alone is farther off"
    asked = medians.asked_median(0.02, medians.ReleasedNumber(1.0), 1.0)
    flat = torch.full((BINS + 1,), 1 / (BINS + 1), dtype=torch.float64)
    with pytest.warns(Note, match="drowned by its noise"):
        asked.answer(flat, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked.answer(flat, 0.01)


# ---- what it sets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clipping", ["norm", "coordinate"])
@pytest.mark.parametrize("engine", ENGINES[:2], ids=["loop", "vectorized"])
def test_every_sample_is_clipped_to_the_released_bound_and_the_noise_scales_with_it(clipping, engine):
    """A step by hand: active coordinates within c each, or within c sqrt(k) together, and noise of z c sqrt(k)."""
    settings = {"clipping": clipping, "lr": 0.3, "batch_size": 40, "local_steps": 1, "keep_fraction": 0.5}
    fed, w = federation(cl.methods.fed_spa(bound="median", noise_multiplier=1.0, **settings), task=TASK, model=MODEL)
    c, size, z, tiny = 0.01, len(w), 1.0, 1e-3
    k = math.floor(size * 0.5 + 0.5)
    scale = -0.3 * (size / k) / 40
    fed.method.first_query.load({"median": torch.tensor([c])})
    quiet_fed, seen = replace(fed, multipliers=(tiny,) * 3), []
    for round in range(1, 31):
        loud, quiet = (cohort_total(one, engine, round, w, torch.tensor([0]))[0] for one in (fed, quiet_fed))
        active = quiet != 0
        assert int(active.sum()) == k
        noise = (loud - quiet) / scale / (z - tiny)  # the same draws, of another size
        g = torch.from_numpy(gradients())[:40] * active
        if clipping == "coordinate":
            total = g.clamp(-c, c).sum(0)
        else:
            total = (g * (c * math.sqrt(k) / g.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        torch.testing.assert_close(quiet, scale * (total + tiny * noise), rtol=1e-5, atol=1e-9)
        seen.append(noise[active])
    draws = torch.cat(seen)

    def fits(deviation: float) -> bool:
        return 5e-10 < stats.chi2.cdf(float((draws / deviation).square().sum()), len(draws)) < 1 - 5e-10

    assert fits(c * math.sqrt(k))
    assert not fits(0.7 * c * math.sqrt(k))
    assert not fits(c * math.sqrt(size))


def test_dp_fed_takes_the_median_for_all_coordinates():
    method = cl.methods.dp_fed(bound="median", lr=0.3, batch_size=40, local_steps=1, noise_multiplier=1e-3)
    fed, w = federation(method, task=TASK, model=MODEL)
    c = 1e-3
    fed.method.first_query.load({"median": torch.tensor([c])})
    found = cohort_total(fed, Loop(), 1, w, torch.tensor([0]))[0]
    g = torch.from_numpy(gradients())[:40]
    clip = c * math.sqrt(len(w))
    total = (g * (clip / g.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    torch.testing.assert_close(found, -0.3 / 40 * total, rtol=1e-3, atol=0.3 / 40 * 1e-3 * clip * 6)


# ---- what it costs ----------------------------------------------------------------------------------------------


def test_everybody_pays_for_it_once_and_training_has_what_is_left(tmp_path):
    run = go(folder=tmp_path / "r")
    entries = RunFolder.open(tmp_path / "r").ledger().entries
    asked = [entry for entry in entries if entry.what == "median"]
    assert Counter(entry.unit for entry in asked) == {sample_account(client): 1 for client in range(3)}
    assert {entry.round for entry in asked} == {0}
    (event,) = {entry.event for entry in asked}
    assert isinstance(event, Gaussian)
    # A share of 0.02: one Gaussian release that spends all of the budget has less noise by the root of 50.
    assert epsilon_of(Gaussian(event.noise_multiplier * math.sqrt(0.02)), 1, 1e-3) == pytest.approx(3.0, rel=2e-3)
    step = PoissonGaussian(run.certificate.noise_multiplier, 8 / 40)
    together = epsilon_of(step, 6, 1e-3, beside=[(event, 1)])
    assert together == pytest.approx(3.0, rel=2e-3)
    assert together <= 3.0 + 1e-4
    assert run.epsilon == pytest.approx(together, rel=1e-6)
    assert epsilon_of(step, 6, 1e-3) < together - 0.003, "unpaid, it would be less"
    assert "a noisy median of the absolute values of samples' gradients" in run.certificate.released


def test_it_is_charged_before_it_is_computed(monkeypatch):
    made, ledger = ready(), Ledger.create(None, "test", {})

    def looked_at(*_):
        assert {(entry.round, entry.what) for entry in ledger.entries} == {(0, "median")}
        raise Killed

    monkeypatch.setattr(queries, "_sums", looked_at)
    with pytest.raises(Killed):
        first_answer(made, ledger)


def test_a_model_without_an_answer_is_refused_before_anybody_pays(tmp_path, monkeypatch):
    real = medians.histograms
    monkeypatch.setattr(medians, "histograms", lambda *given: real(*given)[:, 1:])
    with pytest.raises(CloisterError, match=f"Expected {BINS + 1} numbers of every sample for the median query"):
        go(cl.methods.fed_spa(bound="median", **LOCAL), folder=tmp_path / "r")
    monkeypatch.setattr(medians, "histograms", lambda *given: (_ for _ in ()).throw(RuntimeError("no such thing")))
    with pytest.raises(CloisterError, match=r"a model of which the median query can be answered.*no such thing"):
        go(cl.methods.fed_spa(bound="median", **LOCAL), folder=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_batches_of_a_fixed_size_make_it_a_replacement():
    made = ready(cl.methods.fed_spa(bound="median", batch_sampling="fixed_size", **LOCAL))
    ledger = Ledger.create(None, "test", {})
    first_answer(made, ledger)
    assert {type(entry.event) for entry in ledger.entries} == {FixedSizeGaussian}


def test_a_plan_counts_it():
    plan = cl.plan(MEDIAN, TASK, rounds=3, epsilon=3.0, delta=1e-3)
    assert plan.noise.multipliers == ready(rounds=3).fed.multipliers
    cheaper = cl.plan(cl.methods.fed_spa(**LOCAL), TASK, rounds=3, epsilon=3.0, delta=1e-3)
    assert plan.noise_multiplier > cheaper.noise_multiplier


# ---- bugs, planted one at a time --------------------------------------------------------------------------------


def audit(method=MEDIAN, answers: int = 60) -> None:
    """Of many answers over the same data: what was charged is the noise that is there, for vectors of norm 1."""
    made = ready(method)
    asked, people, ledger = made.fed.method.first_query, made.fed.population, Ledger.create(None, "test", {})

    def vectors(inputs, labels):
        return asked.vectors(made.fed.objective, made.w, inputs, labels)

    def query(noises: tuple[float, ...]) -> queries.Query:
        return queries.Query("median", asked.length, vectors, noises)

    noises = made.noise_of_query("median")
    charges = made.queries.charges(noises, people.counts.tolist())
    exact = queries._sums(query((0.0,)), people).sum(0) / len(people.labels)
    found = [queries.ask(made.fed, ledger, query(noises), charges, people, r).mean - exact for r in range(answers)]
    charged = Counter((entry.round, entry.unit) for entry in ledger.entries if entry.what == "median")
    assert charged == {(r, sample_account(c)): 1 for r in range(answers) for c in range(3)}, "everybody pays, once"
    (noise,) = {entry.event.noise_multiplier for entry in ledger.entries}
    draws = torch.stack(found).flatten() / (noise * math.sqrt(3) / len(people.labels))
    tail = stats.chi2.cdf(float(draws.square().sum()), len(draws))
    assert 5e-10 < tail < 1 - 5e-10, "noise of the scale that was paid for"
    worst = vectors(1e6 * people.inputs, people.labels)
    assert float(worst.norm(dim=1).max()) <= 1 + 1e-9, "vectors of norm 1"


def test_without_a_bug_there_is_no_alarm():
    audit()


def test_a_query_that_nobody_pays_is_caught(monkeypatch):
    monkeypatch.setattr(queries.Ledger, "charge_each", lambda self, charges, **rest: {})
    with pytest.raises(AssertionError, match="everybody pays"):
        audit()


def test_too_little_noise_is_caught(monkeypatch):
    real = queries._of_samples

    def quieter(fed, query, *rest):
        return real(fed, replace(query, noise_multipliers=tuple(0.9 * n for n in query.noise_multipliers)), *rest)

    monkeypatch.setattr(queries, "_of_samples", quieter)
    with pytest.raises(AssertionError, match="noise of the scale"):
        audit()


def test_vectors_that_are_too_long_are_caught(monkeypatch):
    real = medians.histograms
    monkeypatch.setattr(medians, "histograms", lambda *given: 2 * real(*given))
    with pytest.raises(AssertionError, match="vectors of norm 1"):
        audit(cl.methods.fed_spa(bound="median", **LOCAL))


# ---- runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(MEDIAN, id="fed_spa"),
        pytest.param(cl.methods.dp_fed(bound="median", **LOCAL), id="dp_fed", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_goes_on_with_what_was_released(method, monkeypatch, tmp_path):
    whole = go(method, folder=tmp_path / "whole")
    with killed_in_round(monkeypatch, at=2):
        go(method, folder=tmp_path / "torn")
    assert set(RunFolder.open(tmp_path / "torn").load("cpu").released) == {"median"}
    resumed = go(method, folder=tmp_path / "torn", resume=True)
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.epsilon == whole.epsilon
    what = [entry.what for entry in RunFolder.open(tmp_path / "torn").ledger().entries]
    assert what.count("median") == 3


def test_a_recorded_threshold_is_the_released_one(tmp_path):
    run = go(record=["thresholds"], folder=tmp_path / "r")
    median = float(RunFolder.open(tmp_path / "r").load("cpu").released["median"])
    k = math.floor(21 * 0.4 + 0.5)
    limits = run.recorded.by_round("thresholds/clip_norm")
    assert limits == pytest.approx({round: median * math.sqrt(k) for round in (1, 2, 3)}, rel=1e-6)


def test_two_runs_of_one_method_do_not_share_what_was_released():
    """The number is the run's own, and not the method's."""
    first, second = ready(), ready()
    first.fed.method.first_query.load({"median": torch.tensor([5.0])})
    start = second.fed.method.local.init(second.w)["threshold"]
    assert float(first.fed.method.local.init(first.w)["threshold"]) != float(start)


@pytest.mark.slow
def test_it_goes_together_with_standardized_inputs_and_private_validation():
    run = go(standardize=0.05, validation="private", validation_share=0.1)
    assert run.epsilon <= 3.0
    assert run.epsilon > 2.9


def test_public_samples_are_free():
    task = cl.data.digits(clients=5, public_samples=60)
    method = cl.methods.fed_spa(bound="public_median", **LOCAL)
    made = prepared(method, task, epsilon=3.0, dtype="float64")
    exact = public_median(made.fed.objective, made.w, made.fed.public_samples)

    def loss(w, x, y):
        return torch.nn.functional.cross_entropy(w[:640].view(10, 64) @ x.flatten() + w[640:], y)

    rows = [torch.func.grad(loss)(made.w, x, y) for x, y in zip(*made.fed.public_samples, strict=True)]
    assert exact == pytest.approx(float(torch.stack(rows).abs().median()), rel=1e-9)
    k = math.floor(650 * 0.4 + 0.5)
    assert made.description.sensitivity == pytest.approx(exact * math.sqrt(k))
    assert made.description.queries == ()
    assert made.fed.multipliers == prepared(cl.methods.fed_spa(**LOCAL), task, epsilon=3.0).fed.multipliers
    with pytest.raises(CloisterError, match=r"public samples for bound = public_median of fed_spa, found none"):
        ready(method)


@pytest.mark.parametrize(
    ("make", "more", "words"),
    [
        (lambda: cl.methods.fed_spa(bound="median", mode="as_published", **LOCAL), {}, "private gradients for free"),
        (lambda: cl.methods.dp_fed(bound="median", mode="as_published", **LOCAL), {}, "private gradients for free"),
        (lambda: cl.methods.fed_spa(bound="mean", **LOCAL), {}, "bound to be one of"),
        (lambda: cl.methods.fed_spa(bound="median", median_share=0.0, **LOCAL), {}, "0 < median_share < 1"),
        (lambda: cl.methods.fed_spa(bound="median", noise_multiplier=2.0, **LOCAL), {"epsilon": None}, "an epsilon"),
        (lambda: cl.methods.fed_spa(bound="median", median_share=0.97, **LOCAL), {"standardize": 0.05}, "ask for less"),
    ],
)
def test_what_does_not_fit_is_one_sentence(make, more, words):
    with pytest.raises(CloisterError, match=words):
        go(make(), **more)
