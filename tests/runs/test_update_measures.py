"""Directions, signal and sparsity of updates: against clients trained once more in NumPy, pair by pair."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from test_recording import CLIP, LR, STEPS, USUAL, WHOLE, data_of, errors_of, models, quantile, run, update_of

import cloister as cl
from cloister.engine import update_sums
from cloister.engine.measure import measure
from cloister.engine.update_sums import Sent, UpdateSums
from cloister.errors import CloisterError
from cloister.round.run_round import divisor, mean_of
from cloister.runs.recorded import Recorded
from cloister.runs.summaries import counts_between
from cloister.runs.update_measures import sparsity_of
from conftest import plan_of, toy_task
from contract.catalogue import METHODS, cohorts_for, fed_of

assert models  # a fixture


def norm(vector):
    return math.sqrt(sum(float(x) ** 2 for x in vector))


def cosine(one, other):
    return sum(float(a) * float(b) for a, b in zip(one, other, strict=True)) / (norm(one) * norm(other))


@pytest.mark.parametrize(
    ("engine", "cap", "held"),
    [("loop", None, None), ("vectorized", None, 0), ("loop", 5.0, None)],
    ids=["loop", "vectorized, updates computed twice", "weights"],
)
def test_cosines_signal_and_bias_are_those_of_clients_trained_by_hand(models, engine, cap, held, monkeypatch):
    if held is not None:
        monkeypatch.setattr(update_sums, "HELD_BYTES", held)
    task, z, mean_weight = toy_task(), 0.3, 0.6
    weights = {} if cap is None else {"client_weights": "size", "weight_cap": cap, "mean_weight": mean_weight}
    method = cl.methods.dp_fedavg(
        clip_norm=CLIP, lr=LR, local_steps=STEPS, batch_size=WHOLE, noise_multiplier=z, **weights
    )
    found = run(method, task, record=["cosine", "signal", "sparsity", "clients"], engine=engine)
    after = [*(w for w, _, _ in models[1:]), torch.cat([p.detach().flatten() for p in found.model.parameters()])]
    sizes = task.population.counts.tolist()
    for line, (w, members, _), new in zip(found.recorded.lines, models, after, strict=True):
        exact = line["not_private"]
        own = {c: update_of(w, *data_of(task, c)) for c in members if sizes[c]}
        weight = {c: 1.0 if cap is None else min(sizes[c] / cap, 1.0) for c in own}
        by = 8 * (1.0 if cap is None else mean_weight)  # all eight clients are asked, one of them has nothing
        total = sum(weight[c] * u for c, u in own.items())
        clipped = sum(weight[c] * u * min(1.0, CLIP / norm(u)) for c, u in own.items())
        released = (new - w).double().numpy()
        pairs = [cosine(own[a], own[b]) for a, b in itertools.combinations(own, 2)]
        assert exact["cosine"]["pairwise"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-9)
        each = {c: cosine(u, total) for c, u in own.items()}
        assert exact["cosine"]["with_mean"]["mean"] == pytest.approx(sum(each.values()) / len(each), rel=1e-9)
        assert exact["cosine"]["with_mean"]["quantiles"]["0.25"] == pytest.approx(quantile(each.values(), 0.25))
        assert {name: row["cosine"] for name, row in exact["clients"].items()} == pytest.approx(
            {str(c): value for c, value in each.items()}, rel=1e-9
        )
        assert exact["cosine"]["released"] == pytest.approx(cosine(released, total), rel=1e-7)
        signal = exact["signal"]
        assert signal["signal"] == pytest.approx(norm(clipped / by), rel=1e-9)
        assert signal["noise"] == pytest.approx(norm(released - clipped / by), rel=1e-7)
        assert signal["ratio"] == pytest.approx(norm(clipped / by) / norm(released - clipped / by), rel=1e-7)
        assert signal["expected_noise"] == pytest.approx(math.sqrt(21) * z * CLIP / by, rel=1e-12)
        assert signal["clipping_bias"] == pytest.approx(norm((clipped - total) / by), rel=1e-7)
        assert signal["unclipped"] == pytest.approx(norm(total / by), rel=1e-9)
        assert exact["sparsity"]["messages"] == 0
        assert exact["sparsity"]["overlap"] == pytest.approx(1.0)
    assert max(found.recorded.by_round("signal/clipping_bias").values()) > 0.01


def test_noise_in_steps_is_what_it_changes(models):
    """One private step over all samples: -lr/B (sum of clipped gradients + noise). Without noise nothing is released
    of the noise, and the mean over clients is that of clipped gradients."""
    task, clip, z = toy_task(), 0.7, 0.8
    method = cl.methods.pfl(clip_norm=clip, lr=LR, local_epochs=1, batch_size=WHOLE, noise_multiplier=z)
    found = run(method, task, record=["signal", "cosine", "clipping", "gradients"], rounds=1)
    (w, members, _), (line,) = models[0], found.recorded.lines
    means, clipped, several = [], 0, 0
    for c in members:
        inputs, labels = data_of(task, c)
        if not len(labels):
            continue
        error, _ = errors_of(w, inputs, labels)
        gradients = [np.concatenate([np.outer(e, x).ravel(), e]) for e, x in zip(error, inputs, strict=True)]
        clipped, several = clipped + sum(norm(g) > clip for g in gradients), several + len(gradients)
        means.append(-LR * sum(g * min(1.0, clip / norm(g)) for g in gradients) / len(gradients))
    took_part = len(members)
    exact, released = sum(means) / took_part, torch.cat([p.detach().flatten() for p in found.model.parameters()]) - w
    measured = line["not_private"]
    assert measured["signal"]["signal"] == pytest.approx(norm(exact), rel=1e-7)
    assert measured["signal"]["noise"] == pytest.approx(norm(released.numpy() - exact), rel=1e-6)
    assert measured["signal"]["expected_noise"] is None
    assert measured["signal"]["clipping_bias"] is None
    assert measured["cosine"]["released"] == pytest.approx(cosine(released, exact), rel=1e-6)
    assert (measured["clipping"]["of"], measured["clipping"]["clipped"]) == (
        "gradients",
        pytest.approx(clipped / several),
    )
    rows = measured["gradients"]["by_client"].values()
    assert sum(row["clipped"] * row["samples"] for row in rows) == pytest.approx(clipped)


WIDE = {"clip_norm": 0.3, "lr": 0.2, "local_steps": 1, "batch_size": 4, "noise_multiplier": 1.5}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fed_smp_rand_k", {"keep_fraction": 0.5}),
        ("adaptive_clipping", {}),
        ("ddgauss", {}),
        ("dp_fedavg", {"noise": "distributed"}),
        ("dp_fed", {"trust": "sum", "honest_fraction": 0.25}),
        ("dp_fed", {"trust": "sum", "noise": "discrete"}),
    ],
)
def test_the_expected_noise_is_about_what_is_there(name, more):
    """Of 900 numbers or more the norm is within a seventh of the root of its mean square, but for a chance of 1e-9."""
    task = toy_task((5,) * 20, features=600)
    keys = {**WIDE, **({"local_steps": None} if "trust" in more else {})}
    found = cl.run(
        getattr(cl.methods, name)(**keys, **more),
        task,
        rounds=2,
        cohort=cl.full(),
        record=["signal", "sparsity"],
        engine="loop",
        **{**USUAL, "dtype": "float32"},
    ).recorded
    for line in found.lines:
        signal = line["not_private"]["signal"]
        assert signal["noise"] == pytest.approx(signal["expected_noise"], rel=1 / 7)
        assert 0 < signal["signal"] <= 0.31
    if name == "fed_smp_rand_k":
        assert found.by_round("sparsity/messages") == pytest.approx({1: 0.5, 2: 0.5}, abs=1e-3)
        assert found.by_round("sparsity/overlap") == pytest.approx({1: 1.0, 2: 1.0})
        assert max(found.by_round("sparsity/updates").values()) < 0.01


@pytest.mark.parametrize("name", ["dp_fedavg weights", "adaptive_clipping", "adaptive_clipping weights", "dp_fedsam"])
def test_what_is_sent_is_the_update_and_what_clipping_took(name):
    """Decoded messages add up to updates by their weights, and the errors of clipping."""
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())))
    sums = UpdateSums(frozenset({"signal"}))
    plan = plan_of(fed, 1, w, torch.arange(8))
    assert len(list(measure(plan, watch=sums.add))) == sums.clients == 7
    mean, _ = mean_of(fed, plan.offer, sums.messages, 8, 0.0, fed.method.init(w).transform)
    weighting = fed.method.transform.weighting
    by = divisor(fed, plan.offer, 8, 0.0) * (1.0 if weighting is None else weighting.mean_weight)
    torch.testing.assert_close(mean * by, sums.updates + sums.clip_errors, rtol=1e-9, atol=1e-12)
    assert float(sums.clip_errors.norm()) > 0.1 * float(sums.updates.norm())


def test_without_noise_there_is_none():
    signal = run(cl.methods.fedavg(lr=LR, local_steps=2), record=["signal"], rounds=1).recorded.lines[0]["not_private"]
    assert (signal["signal"]["noise"], signal["signal"]["ratio"], signal["signal"]["clipping_bias"]) == (
        0.0,
        None,
        None,
    )


def test_lus_leaves_the_share_that_it_keeps():
    method = cl.methods.lus(clip_norm=CLIP, sparsity=0.5, lr=LR, local_steps=2, batch_size=4, noise_multiplier=1.0)
    found = run(method, record=["sparsity"], rounds=2).recorded
    kept = (9 + 2) / 21  # of 18 weights and of 3 biases, a half rounded up
    for name in ("updates", "messages"):
        assert found.by_round(f"sparsity/{name}") == pytest.approx(dict.fromkeys((1, 2), 1 - kept))


def test_overlap_is_that_of_all_pairs():
    random = np.random.default_rng(3)
    vectors = [random.normal(size=40) * (random.random(40) < share) for share in (0.2, 0.5, 0.5, 0.9, 0.3)]
    sums = UpdateSums(frozenset({"sparsity"}))
    for client, vector in enumerate([*vectors, np.zeros(40)]):
        sums.add(client, Sent(torch.tensor(vector), 1.0, torch.tensor(vector), None))
    kept = [set(np.flatnonzero(vector)) for vector in vectors]
    pairs = [len(a & b) / math.sqrt(len(a) * len(b)) for a, b in itertools.combinations(kept, 2)]
    found = sparsity_of(sums)
    assert found["overlap"] == pytest.approx(sum(pairs) / len(pairs), rel=1e-12)
    assert found["union"] == len(set.union(*kept)) / 40
    assert found["messages"] == pytest.approx(1 - sum(map(len, kept)) / 6 / 40)


def test_few_vectors_are_kept_however_many_clients_there_are(monkeypatch):
    monkeypatch.setattr(update_sums, "HELD_BYTES", 40 * 8 * 3)
    sums = UpdateSums(frozenset({"cosine", "signal", "sparsity"}))
    for client in range(10):
        sums.add(client, Sent(torch.ones(40, dtype=torch.float64), 1.0, torch.ones(40), torch.ones(40)))
        assert sums.held is None or len(sums.held) <= 3
    assert sums.held is None


def test_a_name_that_no_line_has_is_refused():
    for name, hint in (("foo", "choose one of norms"), ("norm/mean", '"norms"'), ("norms/men", '"mean"')):
        with pytest.raises(CloisterError, match=f"name of a measurement.*{hint}"):
            Recorded(("norms",)).by_round(name)
    assert Recorded(("norms",)).by_round("signal/noise") == {}


def test_histograms_of_before_are_spread_over_the_finer_bins():
    """4 bins an octave, as files of before have them, between 12: nothing is lost, and whole bins stay whole."""
    coarse = {"edges": [2.0 ** (k / 4) for k in range(4)], "counts": [6, 0, 3]}
    fine = np.array([2.0 ** (k / 12) for k in range(-2, 12)])
    found = counts_between(coarse, fine)
    assert found.tolist() == pytest.approx([0, 0, 2, 2, 2, 0, 0, 0, 1, 1, 1, 0, 0], abs=1e-9)
