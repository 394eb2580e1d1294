"""Metrics by name, against scikit-learn's; what is undefined; what does not fit; how runs show them."""

from __future__ import annotations

import io
import json
import math
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import nn

import cloister as cl
from cloister.client.losses import hazards, mse
from cloister.errors import CloisterError
from cloister.runs import report
from cloister.runs.folder import RunFolder
from cloister.runs.keys import Key, converted
from cloister.runs.metric_catalogue import CATALOGUE, watched
from cloister.runs.metric_text import figure
from cloister.runs.progress import Progress
from cloister.runs.survival import concordance
from cloister.runs.torchmetrics_import import classification
from cloister.studies.plots import comparison_plot
from cloister.studies.rows import rows_of
from cloister.studies.tables import rich_table
from conftest import prepared

RANDOM = np.random.default_rng(0)
INPUTS = RANDOM.normal(size=(120, 5)).astype(np.float32)
CLIENTS = np.arange(120) % 6
FEDAVG = cl.methods.fedavg(lr=0.1, local_steps=2)
ONCE = {"rounds": 1, "engine": "loop"}

LABELS = {
    "binary": (INPUTS[:, 0] + RANDOM.normal(size=120) > 0.3).astype(int),
    "classes": RANDOM.integers(0, 4, 120),
    "questions": RANDOM.integers(0, 2, (120, 3)),
    "levels": RANDOM.integers(0, 4, 120),
    "numbers": 50 + 10 * INPUTS[:, 0] + RANDOM.normal(size=120),
    "several": np.stack([INPUTS[:, 0] + 3, RANDOM.normal(size=120)], 1),
    "survival": np.stack([RANDOM.integers(1, 30, 120), RANDOM.integers(0, 2, 120)], 1).astype(np.float32),
}
LOSSES = {
    "binary": "cross_entropy",
    "classes": "cross_entropy",
    "questions": "multi_label",
    "levels": "ordinal",
    "numbers": mse(50.0, 10.0),
    "several": "mae",
    "survival": hazards([5, 10, 20]),
}
MACRO = {"average": "macro", "zero_division": 0}
FITTING = {
    "binary": ["accuracy", "balanced_accuracy", "f1", "precision", "recall", "auroc", "average_precision", "loss"],
    "numbers": ["mae", "mse", "rmse", "r2", "loss"],
    "survival": ["concordance", "loss"],
}
FITTING |= {"classes": FITTING["binary"], "questions": FITTING["binary"], "several": FITTING["numbers"]}
FITTING |= {"levels": [*FITTING["binary"], "mae", "mse", "rmse", "r2"]}


def task_of(kind: str, labels=None, **more):
    labels = LABELS[kind] if labels is None else labels
    return cl.data.from_arrays(INPUTS, labels, CLIENTS, loss=LOSSES[kind], test=(INPUTS, labels), **more)


def expected(name: str, kind: str, truth: np.ndarray, outputs: torch.Tensor) -> float:
    """The same by scikit-learn, from the model's outputs."""
    found = outputs.double()
    if kind in ("binary", "classes"):
        predictions, chances = found.argmax(1).numpy(), found.softmax(1).numpy()
    elif kind == "questions":
        predictions, chances = (found > 0).long().numpy(), found.sigmoid().numpy()
    elif kind == "levels":
        above = np.minimum.accumulate(found.sigmoid().numpy(), 1)
        chances = -np.diff(np.concatenate([np.ones((len(above), 1)), above, np.zeros((len(above), 1))], 1))
        predictions = (above > 0.5).sum(1)
    else:
        predictions = found.numpy() * 10 + 50 if kind == "numbers" else found.numpy()
        predictions, chances = predictions.squeeze(), None
    if name in ("auroc", "average_precision"):
        function = sk.roc_auc_score if name == "auroc" else sk.average_precision_score
        if kind == "binary":
            return function(truth, chances[:, 1])
        hits = truth if kind == "questions" else np.eye(4)[truth]
        return float(np.mean([function(hit, chance) for hit, chance in zip(hits.T, chances.T, strict=True)]))
    if name == "balanced_accuracy" and kind == "questions":
        return float(np.mean([sk.balanced_accuracy_score(t, p) for t, p in zip(truth.T, predictions.T, strict=True)]))
    if name == "accuracy":
        return float((truth == predictions).mean())
    function = {
        "balanced_accuracy": sk.balanced_accuracy_score,
        "f1": lambda t, p: sk.f1_score(t, p, **MACRO),
        "precision": lambda t, p: sk.precision_score(t, p, **MACRO),
        "recall": lambda t, p: sk.recall_score(t, p, **MACRO),
        "mae": sk.mean_absolute_error,
        "mse": sk.mean_squared_error,
        "rmse": sk.root_mean_squared_error if kind != "several" else lambda t, p: sk.mean_squared_error(t, p) ** 0.5,
        "r2": sk.r2_score,
    }[name]
    return float(function(truth, predictions))


@pytest.mark.parametrize("kind", [kind for kind in FITTING if kind != "survival"])
def test_metrics_are_those_of_scikit_learn(kind):
    task = task_of(kind)
    run = cl.run(FEDAVG, task, metrics=FITTING[kind], model=nn.Linear(5, task.outputs), **ONCE)
    with torch.no_grad():
        outputs = run.model(torch.from_numpy(INPUTS))
    assert list(run.scores) == FITTING[kind]
    for name, value in run.scores.items():
        if name != "loss":
            assert value == pytest.approx(expected(name, kind, LABELS[kind], outputs), rel=1e-5, abs=1e-6), name
    assert run.monitor == FITTING[kind][0]
    assert run.scores["loss"] == run.history[-1]["loss"]
    assert (run.accuracy is None) == (kind in ("numbers", "several"))


def test_classes_that_are_missing_are_left_out_as_scikit_learn_does():
    """Of a class that is neither there nor predicted, nothing counts; one that is only predicted has precision 0."""
    truth, model = np.array([0, 0, 1, 1, 3]), nn.Linear(5, 5, bias=False)
    inputs = np.eye(5, dtype=np.float32)
    nn.init.eye_(model.weight)
    task = cl.data.from_arrays(inputs, truth, [0, 0, 1, 1, 1], test=(inputs, truth), classes=4)
    still = cl.methods.fedavg(lr=1e-9, local_steps=1)
    run = cl.run(still, task, model=model, metrics=FITTING["binary"], dtype="float64", **ONCE)
    found = run.scores
    predictions = np.arange(5)  # the last one is no class that labels have
    assert found["f1"] == pytest.approx(sk.f1_score(truth, predictions, **MACRO))
    assert found["precision"] == pytest.approx(sk.precision_score(truth, predictions, **MACRO))
    assert found["recall"] == pytest.approx(sk.recall_score(truth, predictions, **MACRO))
    assert found["balanced_accuracy"] == pytest.approx(np.mean([0.5, 0.0, 0.0]))
    chances = run.model(torch.eye(5).double()).detach().softmax(1).numpy()
    each = [sk.roc_auc_score(truth == label, chances[:, label]) for label in (0, 1, 3)]
    assert found["auroc"] == pytest.approx(np.mean(each)), "the mean over classes that are there"


def test_perplexity_is_over_tokens_that_are_no_padding(tmp_path):
    tokens = RANDOM.integers(0, 7, (40, 6))
    labels = RANDOM.integers(0, 7, (40, 6))
    labels[::3, 4:] = -1
    owners = np.arange(40) % 4
    model = nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 7))
    task = cl.data.from_arrays(
        tokens, labels, owners, loss="next_token", classes=7, model=lambda: model, test=(tokens, labels)
    )
    run = cl.run(FEDAVG, task, **ONCE)
    assert list(run.scores) == ["accuracy", "perplexity"]
    outputs = run.model(torch.from_numpy(tokens)).detach().double()
    there = torch.from_numpy(labels) >= 0
    mean = nn.functional.cross_entropy(outputs[there], torch.from_numpy(labels)[there])
    assert run.scores["perplexity"] == pytest.approx(float(mean.exp()), rel=1e-5)
    right = (outputs.argmax(2) == torch.from_numpy(labels))[there]
    assert run.accuracy == pytest.approx(float(right.double().mean())), "padding is no answer"


def by_hand(risks, times, events) -> float:
    pairs = right = 0.0
    for (a, t, e), (b, u, f) in permutations(zip(risks, times, events, strict=True), 2):
        if e and (t < u or (t == u and not f)):
            pairs += 1
            right += 1.0 if a > b else 0.5 if a == b else 0.0
    return right / pairs if pairs else math.nan


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 5), st.booleans()), min_size=0, max_size=12))
def test_concordance_counts_pairs(rows):
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    found = concordance(*(torch.tensor(column, dtype=torch.float64) for column in columns))
    assert found == pytest.approx(by_hand(*columns), nan_ok=True)


def test_concordance_of_many_is_that_of_all_pairs():
    """More events than are compared at a time."""
    risks, times = RANDOM.integers(0, 50, 2500), RANDOM.integers(0, 90, 2500)
    events = RANDOM.random(2500) < 0.8
    later = (times[:, None] < times) | ((times[:, None] == times) & ~events)
    known = events[:, None] & later
    points = (risks[:, None] > risks) + 0.5 * (risks[:, None] == risks)
    found = concordance(*(torch.from_numpy(np.asarray(column, dtype=np.float64)) for column in (risks, times, events)))
    assert found == pytest.approx((points * known).sum() / known.sum())
    assert concordance(torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0]), torch.ones(2)) != 0.5


def test_survival_runs_are_scored_by_concordance():
    run = cl.run(FEDAVG, task_of("survival"), metrics=["concordance", "loss"], **ONCE)
    outputs = run.model(torch.from_numpy(INPUTS)).detach().double()
    risks = (-torch.log(1 - outputs.sigmoid())).sum(1).tolist()
    assert run.scores["concordance"] == pytest.approx(by_hand(risks, *LABELS["survival"].T.tolist()), abs=1e-3)
    assert repr(run).startswith("<Run: concordance 0.")


@pytest.mark.parametrize(
    ("kind", "metric", "labels"),
    [
        ("binary", "auroc", np.ones(9, dtype=int)),
        ("numbers", "r2", np.full(9, 3.0)),
        ("survival", "concordance", np.stack([np.arange(9), np.zeros(9)], 1)),
        ("questions", "auroc", np.ones((9, 3), dtype=int)),
        ("questions", "average_precision", np.zeros((9, 3), dtype=int)),
    ],
)
def test_what_is_undefined_is_none_and_never_nan(kind, metric, labels, tmp_path):
    more = {"classes": 2} if kind == "binary" else {}
    task = cl.data.from_arrays(INPUTS, LABELS[kind], CLIENTS, loss=LOSSES[kind], test=(INPUTS[:9], labels), **more)
    run = cl.run(FEDAVG, task, metrics=[metric], folder=tmp_path / "run", rounds=2, engine="loop")
    assert run.scores == {metric: None}
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in text
    assert json.loads(text.splitlines()[-1])[metric] is None
    assert "none" in repr(run)


@pytest.mark.parametrize("kind", ["binary", "numbers", "survival", "questions"])
def test_a_model_that_diverged_has_no_scores(kind):
    task = task_of(kind)
    ready = prepared(FEDAVG, task, metrics=FITTING[kind][:-1])
    found = ready.score(ready.w * math.nan).metrics
    counted = {"accuracy", "balanced_accuracy", "f1", "precision", "recall"}  # a class is predicted all the same
    assert {name: value for name, value in found.items() if name not in counted} == dict.fromkeys(
        name for name in FITTING[kind][:-1] if name not in counted
    )


def test_lines_keep_accuracy_and_name_other_metrics(tmp_path):
    task = task_of("classes")
    usual = cl.run(FEDAVG, task, folder=tmp_path / "usual", **ONCE).history[-1]
    assert {"monitor", "f1"}.isdisjoint(usual)
    assert usual["accuracy"] is not None
    run = cl.run(FEDAVG, task, metrics=["f1", "accuracy"], folder=tmp_path / "more", **ONCE)
    line = run.history[-1]
    assert line["accuracy"] == usual["accuracy"] == run.accuracy == run.scores["accuracy"]
    assert line["f1"] == run.scores["f1"]
    assert line["monitor"] == run.monitor == "f1"
    watched_second = cl.run(FEDAVG, task, metrics=["f1", "accuracy"], monitor="accuracy", **ONCE)
    assert "monitor" not in watched_second.history[-1]
    assert watched_second.monitor == "accuracy"


def printed(table) -> list[str]:
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=80, color_system=None).print(table)
    return [line.rstrip() for line in text.getvalue().rstrip().splitlines()]


def test_tables_and_pictures_show_the_watched_metric(tmp_path):
    private = cl.methods.dp_fedavg(clip_norm=1.0, lr=0.1, local_steps=2, noise_multiplier=30.0)
    more = {"rounds": 1, "delta": 0.01, "engine": "loop"}
    cl.run(private, task_of("numbers"), folder=tmp_path / "numbers", **more)
    cl.run(private, task_of("classes"), folder=tmp_path / "classes", **more)
    folders = {name: RunFolder.open(tmp_path / name) for name in ("numbers", "classes")}
    (head, row) = printed(report.runs_table({"numbers": folders["numbers"]}))
    assert head.split()[:2] == ["run", "mae"]
    assert "accuracy" not in head
    value = folders["numbers"].metrics()[-1]["mae"]
    assert row.split()[1] == f"{value:.4g}"
    (head, row) = printed(report.runs_table({"classes": folders["classes"]}))
    assert head.split()[:2] == ["run", "accuracy"]
    assert set(report.run_figures({"classes": folders["classes"]})[0]).isdisjoint({"monitor", "score"})
    both = printed(report.runs_table(folders))
    assert len(both) == 3
    assert max(map(len, both)) <= 80
    assert both[0].split()[:2] == ["run", "score"]
    assert "mae" in both[1]
    assert "accuracy" in both[2]
    rows = [report.compared(name, 2.0, folder, {}) for name, folder in folders.items()]
    assert "mae" in printed(rich_table(rows_of(rows[:1])))[0].split()
    assert "accuracy" in printed(rich_table(rows_of(rows[1:])))[0].split()
    assert "score" in printed(rich_table(rows_of(rows)))[0].split()
    assert report.in_words(rows[0]).startswith(f"mae {value:.4g}, epsilon")
    for name in ("runs", "compare"):
        path = tmp_path / f"{name}.png"
        report.runs_plot(folders, path) if name == "runs" else comparison_plot(rows_of(rows), path)
        assert path.stat().st_size > 1000


def test_progress_shows_the_watched_metric(capsys):
    with Progress(True, 2, "dp_fedavg") as line:
        line.advance({"round": 1, "epsilon": 1.0, "accuracy": None, "mae": 1234.6, "monitor": "mae"})
        assert ", mae 1235, " in line.text()
        line.advance({"round": 2, "epsilon": 1.0, "accuracy": 0.5})
        assert ", accuracy 0.500, " in line.text()


def test_metrics_are_keys(command, tmp_path):
    words = [
        "run",
        "data=digits",
        "clients=20",
        "cohort=full",
        "lr=0.1",
        "local_steps=1",
        "clip_norm=1",
        "rounds=1",
        "epsilon=8",
    ]
    words += ["delta=1e-3", "allow_large_delta=true", "engine=loop", "--quiet"]
    done = command(*words, "metrics=f1, auroc", "monitor=auroc", "--folder", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:2] == ["reached:", "auroc"]
    assert 'metrics = ["f1", "auroc"]' in (tmp_path / "a" / "config.toml").read_text()
    file = tmp_path / "run.toml"
    file.write_text('metrics = ["accuracy", "balanced_accuracy"]\n')
    done = command("run", file, *words[1:], "--folder", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert "balanced_accuracy" in RunFolder.open(tmp_path / "b").metrics()[-1]


def test_lists_of_words_are_read():
    key = Key("metrics", "every run", list[str] | None, None, "names")
    for given_, read in ((["f1"], ["f1"]), ("f1", ["f1"]), ("f1,mae", ["f1", "mae"]), ("f1, mae", ["f1", "mae"])):
        assert converted(key, given_) == read
    assert converted(key, 3) == ["3"], "layers may be called so"
    for bad in (True, [3], ["f1", 2.0], {"a": 1}):
        with pytest.raises(CloisterError, match="Expected metrics to be a"):
            converted(key, bad)
    numbers = Key("epsilon", "every run", float | list[float] | None, None, "budget")
    assert converted(numbers, [1, "1/4"]) == [1.0, 0.25]


def test_a_torchvision_that_cannot_be_imported_is_left_out():
    """It may be built for another torch; metrics of classes do not need it."""
    assert float(classification().binary_auroc(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))) == 1.0


def test_figures_are_read_by_people():
    assert [figure("accuracy", 0.5), figure("rmse", 12345.6), figure("rmse", 1e-5)] == ["0.500", "1.235e+04", "1e-05"]


def own_loss(outputs, labels):
    return (outputs.squeeze(1) - labels).square()


OWN = cl.data.from_arrays(INPUTS, INPUTS[:, 0], CLIENTS, loss=own_loss, model=lambda: nn.Linear(5, 1))
WIDE = cl.data.from_arrays(INPUTS, INPUTS[:, 0], CLIENTS, loss=own_loss, model=lambda: nn.Linear(5, 3))
BAD = {
    "no such metric": ("binary", {"metrics": ["acuracy"]}, "a metric to be one of accuracy, .* found 'acuracy'"),
    "a metric that is no word": ("binary", {"metrics": [3]}, "a metric to be one of .* found 3"),
    "no metric": ("binary", {"metrics": []}, "one metric at least"),
    "a number": ("binary", {"metrics": 3}, "metrics to be a list of names, found 3"),
    "a metric twice": ("binary", {"metrics": ["f1", "f1"]}, "metrics that differ"),
    "a monitor that does not exist": ("binary", {"metrics": ["f1"], "monitor": "f2"}, "monitor to be one of f1"),
    "a monitor that is no word": ("binary", {"monitor": 3}, "monitor to be the name of a metric, found 3"),
    "auroc of numbers": ("numbers", {"metrics": ["auroc"]}, "loss mse, found 'auroc', which needs classes"),
    "accuracy of numbers": ("numbers", {"metrics": ["accuracy"]}, "which needs classes or yes-or-no questions"),
    "f1 of survival": ("survival", {"metrics": ["f1"]}, "fits the loss hazards, found 'f1'.* choose of concordance"),
    "mae of survival": ("survival", {"metrics": ["mae"]}, "found 'mae', which needs numbers"),
    "r2 of classes": ("classes", {"metrics": ["r2"]}, "loss cross_entropy, found 'r2', which needs numbers"),
    "concordance of classes": ("classes", {"metrics": ["concordance"]}, "which needs times and events"),
    "perplexity of classes": ("classes", {"metrics": ["perplexity"]}, "which needs tokens"),
    "concordance of numbers": ("numbers", {"metrics": ["mae", "concordance"]}, "needs times and events"),
    "mae of questions": ("questions", {"metrics": ["mae"]}, "found 'mae', which needs numbers"),
    "accuracy of an own loss": (OWN, {"metrics": ["accuracy"]}, "fits the loss own_loss, found 'accuracy'"),
    "mae of outputs that are no predictions": (WIDE, {"metrics": ["mae"]}, "as many outputs as labels|fails"),
    "personalization in another way": ("binary", {"personalize": "all"}, "personalize to be one of none, fine_tune"),
    "personalization without tests": ("binary", {"personalize": "head"}, "clients with test samples of their own"),
    "no steps": ("binary", {"personalize_steps": 0}, "personalize_steps to be a whole number of at least 1"),
    "a learning rate below 0": ("binary", {"personalize_lr": -0.1}, "personalize_lr > 0"),
    "batches of none": ("binary", {"personalize_batch_size": 0}, "personalize_batch_size to be a whole number"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused_before_anything_is_written(what, tmp_path):
    kind, settings, message = BAD[what]
    task = task_of(kind) if isinstance(kind, str) else kind
    with pytest.raises(CloisterError, match=message) as refused:
        cl.run(FEDAVG, task, folder=tmp_path / "run", **ONCE, **settings)
    assert str(refused.value).startswith("Expected ")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_own_losses_of_numbers_have_errors_of_numbers():
    run = cl.run(FEDAVG, OWN, metrics=["mae", "loss"], **ONCE)
    outputs = run.model(OWN.test_inputs).squeeze(1)
    assert run.scores["mae"] == pytest.approx(float((outputs - OWN.test_labels).abs().mean()))
    assert cl.run(FEDAVG, OWN, **ONCE).monitor == "loss"


def test_own_losses_of_classes_are_read_as_classifiers():
    def focal(outputs, labels):
        found = nn.functional.cross_entropy(outputs, labels, reduction="none")
        return (1 - (-found).exp()) ** 2 * found

    task = cl.data.from_arrays(INPUTS, LABELS["classes"], CLIENTS, loss=focal, classes=4, model=lambda: nn.Linear(5, 4))
    run = cl.run(FEDAVG, task, metrics=["accuracy", "auroc"], **ONCE)
    found = run.model(task.test_inputs).argmax(1)
    assert run.accuracy == pytest.approx(float((found == task.test_labels).double().mean()))
    assert 0 < run.scores["auroc"] < 1


def test_every_metric_says_what_it_is():
    assert all(metric.help and metric.fits and metric.name == name for name, metric in CATALOGUE.items())
    smaller = {name for name, metric in CATALOGUE.items() if not metric.larger_is_better}
    assert smaller == {"mae", "mse", "rmse", "perplexity", "loss"}
    assert watched(task_of("binary"), "f1").monitor.name == "f1", "one word will do"
