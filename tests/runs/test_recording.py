"""What is recorded of rounds: against clients that are trained once more in NumPy, and without a trace in the run."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import cloister as cl
from cloister.engine import Loop
from cloister.engine.measure import measure
from cloister.errors import CloisterError, Corrupted
from cloister.runs import measurement_file, training
from cloister.runs.folder import RunFolder
from cloister.runs.recorded import NAMES, not_private_in
from conftest import killed_in_round, plan_of, toy_task
from contract.catalogue import CLIENTS, METHODS, cohorts_for, fed_of

CLIP, LR, STEPS, WHOLE = 0.9, 0.4, 3, 64  # a batch holds all samples of any client, so that none has to be drawn
ALL = list(NAMES)
USUAL = {"delta": 1e-3, "progress": False, "dtype": "float64", "evaluate_every": 1}


@pytest.fixture
def models(monkeypatch):
    """The model and the members of every round, as the run goes."""
    found, real = [], training.run_round

    def watching(fed, ledger, engine, round, w, state):
        outcome = real(fed, ledger, engine, round, w, state)
        found.append((w.clone(), outcome.clients.tolist(), fed))
        return outcome

    monkeypatch.setattr(training, "run_round", watching)
    return found


# ---- the reference: multinomial logistic regression by hand ------------------------------------------------------


def data_of(task, client):
    start, size = int(task.population.starts[client]), int(task.population.counts[client])
    return task.population.inputs[start : start + size].double().numpy(), task.population.labels[
        start : start + size
    ].numpy()


def split(w, features=6, classes=3):
    w = np.asarray(w, dtype=np.float64)
    return w[: features * classes].reshape(classes, features), w[features * classes :]


def errors_of(w, inputs, labels):
    """p - y for every sample, and its loss."""
    weight, bias = split(w)
    logits = inputs @ weight.T + bias
    logits = logits - logits.max(1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p - np.eye(3)[labels], -np.log(p[np.arange(len(labels)), labels])


def gradient_of(w, inputs, labels):
    error, _ = errors_of(w, inputs, labels)
    return np.concatenate([(error.T @ inputs).ravel(), error.sum(0)]) / len(labels)


def sample_norms(w, inputs, labels):
    """A sample's gradient is (p - y)(x, 1): its norm is that of the one times that of the other."""
    error, _ = errors_of(w, inputs, labels)
    return np.sqrt((error**2).sum(1)) * np.sqrt((inputs**2).sum(1) + 1)


def update_of(w, inputs, labels):
    new = np.asarray(w, dtype=np.float64).copy()
    for _ in range(STEPS):
        new -= LR * gradient_of(new, inputs, labels)
    return new - np.asarray(w, dtype=np.float64)


def quantile(values, share):
    """Between neighbors, linearly."""
    ordered, place = sorted(values), share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def run(method=None, task=None, **more):
    made = method or cl.methods.dp_fedavg(
        clip_norm=CLIP, lr=LR, local_steps=STEPS, batch_size=WHOLE, noise_multiplier=0.3
    )
    settings = {"rounds": 4, "cohort": cl.full(), "engine": "loop", **USUAL, **more}
    return cl.run(made, task or toy_task(), **settings)


def vector(found):
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


# ---- what is recorded is right ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
def test_norms_and_clip_factors_are_those_of_clients_trained_by_hand(models, engine):
    task = toy_task()
    cohort = cl.poisson(0.7)
    found = run(task=task, record=["norms", "clipping", "clients"], engine=engine, cohort=cohort).recorded
    clipped = []
    for line, (w, members, _) in zip(found.lines, models, strict=True):
        own = {c: data_of(task, c) for c in members if int(task.population.counts[c])}
        norms = {c: float(np.linalg.norm(update_of(w, *data))) for c, data in own.items()}
        factors = [min(1.0, CLIP / norm) for norm in norms.values()]
        mean = sum(factors) / len(factors)
        clipped += factors
        exact = line["not_private"]
        assert exact["norms"]["count"] == len(norms)
        for share in (0.05, 0.25, 0.5, 0.75, 0.95):
            assert exact["norms"]["quantiles"][f"{share:g}"] == pytest.approx(quantile(norms.values(), share), rel=1e-9)
        assert exact["norms"]["mean"] == pytest.approx(sum(norms.values()) / len(norms), rel=1e-9)
        assert (exact["norms"]["least"], exact["norms"]["most"]) == pytest.approx(
            (min(norms.values()), max(norms.values())), rel=1e-9
        )
        edges, counts = exact["norms"]["histogram"]["edges"], exact["norms"]["histogram"]["counts"]
        assert [sum(a <= n < b for n in norms.values()) for a, b in itertools.pairwise(edges)] == counts
        assert sum(counts) == len(norms)
        assert exact["clipping"]["of"] == "updates"
        assert exact["clipping"]["clip_norm"] == CLIP
        assert exact["clipping"]["mean"] == pytest.approx(mean, rel=1e-9)
        assert exact["clipping"]["spread"] == pytest.approx(
            sum(abs(one - mean) for one in factors) / len(factors), rel=1e-6, abs=1e-12
        )
        assert exact["clipping"]["clipped"] == pytest.approx(sum(norm > CLIP for norm in norms.values()) / len(norms))
        assert {name: row["norm"] for name, row in exact["clients"].items()} == pytest.approx(
            {str(c): norm for c, norm in norms.items()}, rel=1e-9
        )
    assert min(clipped) < 1 == max(clipped), "or clipping was not seen at work, or not to spare"
    assert found.mean_clip_factor == {line["round"]: line["not_private"]["clipping"]["mean"] for line in found.lines}
    assert found.clip_factor_spread == {
        line["round"]: line["not_private"]["clipping"]["spread"] for line in found.lines
    }


def test_gradients_of_single_samples_are_those_worked_out_by_hand(models):
    """In private steps: one step a round, over all samples."""
    task = toy_task()
    method = cl.methods.pfl(clip_norm=2.5, lr=LR, local_epochs=1, batch_size=WHOLE, noise_multiplier=1.0)
    found = run(method, task, record=["gradients", "clipping", "clients"], cohort=cl.full(), rounds=3).recorded
    for line, (w, members, _) in zip(found.lines, models, strict=True):
        norms = {str(c): sample_norms(w, *data_of(task, c)) for c in members if int(task.population.counts[c])}
        exact = line["not_private"]
        assert {name: sorted(row["gradient_norms"]) for name, row in exact["clients"].items()} == {
            name: pytest.approx(sorted(own), rel=1e-9) for name, own in norms.items()
        }
        together = np.concatenate(list(norms.values()))
        for name, own in norms.items():
            row = exact["gradients"]["by_client"][name]
            assert (row["samples"], row["mean"], row["median"], row["most"]) == pytest.approx(
                (len(own), own.mean(), quantile(own, 0.5), own.max()), rel=1e-9
            )
            assert row["mean_clip_factor"] == pytest.approx(np.minimum(1, 2.5 / own).mean(), rel=1e-9)
        factors = np.minimum(1, 2.5 / together)
        assert exact["clipping"]["of"] == "gradients"
        assert exact["clipping"]["mean"] == pytest.approx(factors.mean(), rel=1e-9)
        assert exact["clipping"]["spread"] == pytest.approx(np.abs(factors - factors.mean()).mean(), rel=1e-9)
    assert min(together) < 2.5 < max(together)


def test_noise_and_thresholds_of_adap_dp_fl_are_its_recursions(models):
    """C <- alpha (sum of min(||g||, R) + N(0, (query sigma R)^2)) / L between floor and R; sigma <- beta sigma whenever
    the loss of the model on public samples has fallen three times in a row, from the third model on. So many samples
    drown the noise, so that it falls whatever is drawn."""
    bound, floor, query, alpha, start, beta, noise = 3.0, 0.05, 0.5, 0.9, 1.5, 0.5, 1.2
    whole = toy_task(seed=7).population
    task = replace(toy_task((900, 600, 800)), public_samples=(whole.inputs, whole.labels))
    method = cl.methods.adap_dp_fl(
        clip_norm=start,
        norm_bound=bound,
        floor=floor,
        query_noise=query,
        alpha_clip=alpha,
        noise_decay=beta,
        noise_multiplier=noise,
        lr=0.05,
        batch_size=1000,
    )
    found = run(method, task, record=["thresholds"], cohort=cl.full(), rounds=7, epsilon=290.0).recorded
    assert (found.mark, not_private_in(found.names)) == (None, ())
    threshold, scale, losses = dict.fromkeys((0, 1, 2), start), 1.0, []
    for number, (line, (w, members, fed)) in enumerate(zip(found.lines, models, strict=True), 1):
        if number > 1:  # the model that the round before gave
            public = errors_of(w, whole.inputs.double().numpy(), whole.labels.numpy())[1].mean()
            losses.append(public if number > 3 else math.inf)
            before = ([math.inf] * 3 + losses)[-4:]
            scale *= beta if all(b < a for a, b in itertools.pairwise(before)) else 1.0
        told = line["released"]["thresholds"]
        assert told["noise_multiplier"] == pytest.approx(noise * scale, rel=1e-12)
        assert told["by_client"] == pytest.approx({str(c): threshold[c] for c in members}, rel=1e-8)
        assert told["clip_norm"] == pytest.approx(sum(threshold.values()) / 3, rel=1e-8)
        assert (told["least"], told["most"]) == pytest.approx((min(threshold.values()), max(threshold.values())))
        for c in members:
            norms = sample_norms(w, *data_of(task, c))
            drawn = fed.streams.protective_normal(torch.zeros(1, 22, dtype=torch.float64), "step noise", number, c, 0)
            total = np.minimum(norms, bound).sum() + query * bound * noise * scale * float(drawn[0, -1])
            threshold[c] = min(max(alpha * total / len(norms), floor), bound)
    assert scale < 1, "or no noise fell"
    assert len(set(threshold.values())) == 3


def test_the_threshold_of_adaptive_clipping_is_the_one_that_was_told():
    """C_1 is the one to start from; afterwards it moves by at most exp(clip_lr) a round."""
    method = cl.methods.adaptive_clipping(
        clip_norm=0.1, clip_lr=0.3, lr=LR, local_steps=2, batch_size=4, noise_multiplier=0.5
    )
    found = run(method, record=["thresholds", "norms"], rounds=5).recorded
    limits = list(found.by_round("thresholds/clip_norm").values())
    assert limits == pytest.approx(list(found.by_round("norms/clip_norm").values()), rel=1e-12)
    assert limits[0] == pytest.approx(0.1)
    steps = [math.log(after / before) for before, after in itertools.pairwise(limits)]
    assert 0 < max(map(abs, steps)) <= 0.3
    assert max(steps) > 0.1, "nearly all updates are longer than 0.1"


def test_train_scores_are_those_of_the_training_samples(models):
    task = toy_task()
    found = run(task=task, record=["train"], rounds=4, evaluate_every=2)
    assert [line["round"] for line in found.recorded.lines] == [1, 2, 3, 4]
    assert list(found.recorded.by_round("train/loss")) == [2, 4], "as often as models are tested"
    inputs, labels = task.population.inputs.double().numpy(), task.population.labels.numpy()
    for number, w in ((2, models[2][0]), (4, vector(found))):
        error, losses = errors_of(w, inputs, labels)
        right = ((error + np.eye(3)[labels]).argmax(1) == labels).mean()
        exact, tested = found.recorded.lines[number - 1]["not_private"]["train"], found.history[number - 1]
        assert (exact["loss"], exact["accuracy"]) == pytest.approx((losses.mean(), right), rel=1e-9)
        assert exact["accuracy_gap"] == pytest.approx(right - tested["accuracy"])
        assert exact["loss_gap"] == pytest.approx(tested["loss"] - losses.mean())


def test_an_update_that_is_not_finite_has_no_norm():
    task = toy_task()
    inputs = task.population.inputs.clone()
    inputs[int(task.population.starts[4])] = math.inf
    task = replace(task, population=replace(task.population, inputs=inputs))
    found = run(task=task, record=["norms", "clipping", "clients"], rounds=1)
    exact = found.recorded.lines[0]["not_private"]
    assert (
        (exact["norms"]["count"], exact["norms"]["nonfinite"]) == (6, found.history[0]["nonfinite_updates"]) == (6, 1)
    )
    assert exact["clients"]["4"] == {}
    assert exact["clipping"]["count"] == 6


def test_a_round_without_anybody_is_a_line_without_numbers():
    nobody = replace(cl.full(), sample=lambda *_: torch.empty(0, dtype=torch.int64))
    found = run(cohort=nobody, record=ALL, rounds=1).recorded
    assert found.lines[0]["not_private"]["norms"]["count"] == 0
    assert found.by_round("norms/mean") == found.by_round("clipping/mean") == {}


def _kinds(names):
    return [pytest.param(name, marks=pytest.mark.slow if " " in name else ()) for name in names]


@pytest.mark.parametrize("name", _kinds(METHODS))
def test_every_method_can_be_measured_and_its_messages_are_what_clipping_leaves(name):
    fed, w = fed_of(METHODS[name](), next(iter(cohorts_for(name).values())))
    plan = plan_of(fed, 1, w, torch.arange(8))
    found = list(measure(plan, gradients=True))
    assert [one.client for one in found] == [0, 1, 2, 4, 5, 6, 7], "all that have data"
    for one in found:
        assert one.finite
        assert len(one.gradient_norms)
        assert 0 < one.factor <= 1
        if name in CLIENTS and one.clip_norm is not None and fed.sensitivity.assumed_l2 is None:
            assert one.norm * one.factor <= one.clip_norm * (1 + 1e-9)
            assert (one.factor < 1) == (one.norm > one.clip_norm)


def test_what_is_measured_are_the_messages_of_the_round():
    """The sum of what clipping leaves of the updates is the sum that an engine sends, without noise."""
    fed, w = fed_of(METHODS["dp_fedavg"](), cl.full())
    clipped, seen = fed.method.transform.clipped, []

    def watching(update, context):
        seen.append(update.clone())
        return clipped(update, context)

    fed = replace(fed, method=replace(fed.method, transform=replace(fed.method.transform, clipped=watching)))
    plan = plan_of(fed, 1, w, torch.arange(8))
    found = list(measure(plan))
    total = sum(update * one.factor for update, one in zip(seen, found, strict=True))
    torch.testing.assert_close(total, Loop().total(plan)[0], rtol=1e-9, atol=1e-12)


# ---- and leaves no trace in the run -------------------------------------------------------------------------------

QUICK = ("dp_fedavg", "adap_dp_fl decay")


@pytest.mark.parametrize("engine", ["loop", "vectorized"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in METHODS]
)
def test_a_run_has_the_same_bits_and_the_same_price_with_and_without(name, engine):
    public = toy_task(seed=7).population
    task = replace(toy_task(), public_samples=(public.inputs[:6], public.labels[:6]))
    more = {
        "cohort": next(iter(cohorts_for(name).values())),
        "rounds": 3,
        "engine": engine,
        "dtype": "float32",
    }
    if name.startswith("adap_dp_fl") or "median" in name:  # what is asked has a share of it
        more["epsilon"] = 290.0
    alone, measured = (run(METHODS[name](), task, record=record, **more) for record in (None, ALL))
    assert torch.equal(vector(alone), vector(measured))
    assert alone.epsilon == measured.epsilon
    one, other = (found.certificate.to_json() for found in (alone, measured))
    marked = [gap for gap in other["not_covered"] if "NOT PRIVATE" in gap]
    assert len(marked) == 1
    other["not_covered"] = [gap for gap in other["not_covered"] if gap not in marked]
    assert one == other
    for a, b in zip(alone.history, measured.history, strict=True):
        assert {**a, "seconds": 0} == {**b, "seconds": 0}


def test_nothing_is_recorded_unless_it_is_asked_for(tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("measured")

    monkeypatch.setattr("cloister.runs.recording.measure", never)
    found = run(folder=tmp_path / "run")
    assert found.recorded is None
    assert not (tmp_path / "run" / "measurements.jsonl").exists()
    assert not [gap for gap in found.certificate.not_covered if "recorded" in gap]
    assert RunFolder.open(tmp_path / "run").checkpoint().recorded == ()


def test_only_what_is_asked_for_is_recorded():
    for name in ("norms", "clipping", "gradients", "train", "thresholds"):
        (line,) = run(record=[name], rounds=1).recorded.lines
        assert [*line["released"], *line["not_private"]] == [name]


# ---- on the disk ---------------------------------------------------------------------------------------------------


def lines_in(folder):
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("at", [pytest.param(2, marks=pytest.mark.slow), 4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_resumed_run_has_every_line_once(tmp_path, monkeypatch, at):
    keys = {"record": ALL, "rounds": 6, "checkpoint_every": 2}
    whole = run(folder=tmp_path / "whole", **keys)
    with killed_in_round(monkeypatch, at):
        run(folder=tmp_path / "torn", **keys)
    with (tmp_path / "torn" / "measurements.jsonl").open("a") as file:
        file.write('{"round": 99, "rel')  # torn in the middle of a line
    again = run(folder=tmp_path / "torn", resume=True, **keys)
    assert lines_in(tmp_path / "torn") == lines_in(tmp_path / "whole")
    assert again.recorded == whole.recorded == measurement_file.read(tmp_path / "torn")
    assert [line["round"] for line in again.recorded.lines] == [1, 2, 3, 4, 5, 6]
    assert again.certificate == whole.certificate == RunFolder.open(tmp_path / "torn").certificate()


def test_a_hole_is_found_and_other_measurements_are_refused(tmp_path, monkeypatch):
    keys = {"record": ["norms"], "rounds": 6, "checkpoint_every": 2}
    with killed_in_round(monkeypatch, 6):
        run(folder=tmp_path / "torn", **keys)
    for other in (None, ["clipping"], ["norms", "train"]):
        with pytest.raises(CloisterError, match="Expected record = norms"):
            run(folder=tmp_path / "torn", resume=True, **{**keys, "record": other})
    file = tmp_path / "torn" / "measurements.jsonl"
    whole = file.read_text().splitlines(keepends=True)
    for damaged in ("".join(whole[:2] + whole[3:]), "".join(whole[:3]), whole[0] + "{}\n", ""):
        file.write_text(damaged)
        with pytest.raises(Corrupted, match="measurements"):
            run(folder=tmp_path / "torn", resume=True, **keys)
    file.write_text("".join(whole))
    assert len(run(folder=tmp_path / "torn", resume=True, **keys).recorded.lines) == 6


def test_the_file_is_for_its_owner_alone(tmp_path):
    run(folder=tmp_path / "run", record=["norms"], rounds=1)
    assert (tmp_path / "run" / "measurements.jsonl").stat().st_mode & 0o077 == 0


def test_a_run_that_was_kept_without_measurements_is_still_read(tmp_path):
    """A checkpoint that says nothing about them, as those of before."""
    from cloister.runs import checkpoint

    run(folder=tmp_path / "run", rounds=1)
    stored = RunFolder.open(tmp_path / "run").checkpoint()
    facts = {name: value for name, value in stored.facts.items() if name != "recorded"}
    assert checkpoint.StoredCheckpoint(stored.tensors, facts).recorded == ()


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("thresholds", "clients")])
def test_exact_measurements_are_refused_where_randomness_is_secure(name, tmp_path):
    with pytest.raises(CloisterError, match=r"Expected no exact measurement .*secure randomness"):
        run(secure_rng=True, record=[name], folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_was_paid_for_may_be_recorded_where_randomness_is_secure():
    found = run(secure_rng=True, record=["thresholds"], rounds=2)
    assert found.recorded.by_round("thresholds/clip_norm") == {1: CLIP, 2: CLIP}
    assert not [gap for gap in found.certificate.not_covered if "recorded" in gap]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (["norm"], "record to be one of"),
        ("norms", "record to be a list of names"),
        (["norms", "norms"], "each name in record once"),
        (["clients"], "one of norms, .* beside clients"),
        ([3], "record to be one of"),
    ],
)
def test_wrong_names_are_refused(record, words):
    with pytest.raises(CloisterError, match=words):
        run(record=record)


def test_gradients_of_single_samples_are_refused_where_a_loss_mixes_them():
    times = np.stack([np.arange(1.0, 21), np.ones(20)], axis=1)
    task = cl.data.from_arrays(np.random.default_rng(0).normal(size=(20, 4)), times, np.arange(20) // 4, loss="cox")
    with pytest.raises(CloisterError, match="to record gradients of single samples, found cox"):
        run(task=task, record=["gradients"])
    assert run(task=task, record=["norms", "train"], rounds=1).recorded.by_round("norms/mean")


def test_measuring_needs_draws_that_can_be_repeated():
    fed, w = fed_of(METHODS["dp_fedavg"](), cl.full())
    fed = replace(fed, streams=replace(fed.streams, secure=True))
    with pytest.raises(CloisterError, match="draws that can be repeated"):
        next(measure(plan_of(fed, 1, w, torch.arange(8))))
