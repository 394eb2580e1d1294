"""Metrics by name: what each says, of which labels, and whether larger is better.

A metric is computed from columns with a row for every test sample (`Columns`), so that any client's own rows can be
scored as well. What is undefined (an AUROC where all labels are the same) is None. Metrics over classes are means over
classes that count the same (macro), of two classes as of many; those of `multi_label` are means over its questions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from cloister.client.losses import Loss
from cloister.data.task import Task
from cloister.errors import CloisterError, expect, expect_one_of, expect_type
from cloister.runs.metric_text import SMALLER_IS_BETTER
from cloister.runs.survival import concordance
from cloister.runs.torchmetrics_import import classification

Kind = Literal["classes", "questions", "levels", "tokens", "numbers", "survival", "other"]
"""What labels are: classes, several yes-or-no questions, classes in an order, tokens, numbers, times and events."""
Columns = Mapping[str, Tensor]
"""By name, a row for every sample: truth, losses, right and counted (answers), predictions, probabilities, ..."""

_WORDS: dict[Kind, str] = {
    "classes": "classes",
    "questions": "yes-or-no questions",
    "levels": "classes in an order",
    "tokens": "tokens",
    "numbers": "numbers",
    "survival": "times and events",
    "other": "labels of a loss of your own",
}


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is. `takes` are the columns that it is computed from."""

    name: str
    help: str
    fits: tuple[Kind, ...]
    takes: tuple[str, ...]
    compute: Callable[[Columns, Kind, int], float]

    @property
    def larger_is_better(self) -> bool:
        """Whether more of it is better."""
        return self.name not in SMALLER_IS_BETTER

    def __call__(self, columns: Columns, kind: Kind, classes: int) -> float | None:
        """The value, or None where it is undefined; `classes` is the number of classes, or of columns of labels."""
        if not len(columns["losses"]):
            return None
        value = self.compute(columns, kind, classes)
        return value if math.isfinite(value) else None


def kind_of(loss: Loss, classes: int | None) -> Kind:
    """What the labels of a loss are."""
    known: dict[str, Kind] = {
        "multi_label": "questions",
        "ordinal": "levels",
        "next_token": "tokens",
        **dict.fromkeys(("mse", "mae", "huber"), "numbers"),
        **dict.fromkeys(("hazards", "cox"), "survival"),
    }
    if not loss.own and loss.name in known:
        return known[loss.name]
    return "other" if classes is None else "classes"


@dataclass(frozen=True)
class Watched:
    """The metrics of a run, and the one that is shown, compared and stopped by."""

    kind: Kind
    metrics: tuple[Metric, ...]
    monitor: Metric
    classes: int
    """How many classes there are; or how many columns labels have."""

    @property
    def columns(self) -> frozenset[str]:
        """What has to be collected for them."""
        return frozenset(name for metric in self.metrics for name in metric.takes)


def watched(task: Task, metrics: Sequence[str] | str | None = None, monitor: str | None = None) -> Watched:
    """The metrics that are asked for (by default those of the loss), once they are found to fit the task."""
    wide = task.test_labels.shape[1] if task.test_labels.dim() > 1 else 1
    return watched_for(task.loss, task.classes, wide, metrics, monitor)


def watched_for(
    loss: Loss, classes: int | None, wide: int, metrics: Sequence[str] | str | None = None, monitor: str | None = None
) -> Watched:
    """The same for any labels: classes, or so many numbers for each sample."""
    kind = kind_of(loss, classes)
    names = [name.strip() for name in metrics.split(",")] if isinstance(metrics, str) else metrics
    if names is None:
        names = loss.metrics or (("accuracy",) if kind == "classes" else ("loss",))
        if isinstance(monitor, str) and monitor not in names:
            names = (*names, monitor)
    expect_type("metrics", names, (list, tuple), "a list of names", f"choose of {', '.join(CATALOGUE)}")
    expect(len(names) > 0, "one metric at least", "none", "leave metrics out for those of the loss")
    chosen = tuple(_fitting(name, loss, kind) for name in names)
    remedy = "name each once"
    expect(len({one.name for one in chosen}) == len(chosen), "metrics that differ", list(names), remedy)
    found = Watched(kind, chosen, _monitor(monitor, chosen), classes or wide)
    if any(metric in _BY_TORCHMETRICS for metric in (one.name for one in chosen)):
        classification()  # or a run would find out after its first round that it cannot be imported
    return found


def _fitting(name: object, loss: Loss, kind: Kind) -> Metric:
    fitting = [one.name for one in CATALOGUE.values() if kind in one.fits]
    expect_one_of("a metric", name, CATALOGUE, f"for {_WORDS[kind]} there are {', '.join(fitting)}")
    metric = CATALOGUE[str(name)]
    if kind not in metric.fits:
        raise CloisterError(
            f"Expected a metric that fits the loss {loss.name}, found {name!r}, which needs "
            f"{' or '.join(_WORDS[one] for one in metric.fits)}: choose of {', '.join(fitting)}."
        )
    if "probabilities" in metric.takes and loss.predict_proba is None:
        raise CloisterError(
            f"Expected a loss whose outputs become probabilities for the metric {name!r}, found {loss.name}: give it a "
            "predict_proba, or choose another metric."
        )
    return metric


def _monitor(monitor: str | None, chosen: Sequence[Metric]) -> Metric:
    if monitor is None:
        return chosen[0]
    names = [metric.name for metric in chosen]
    expect_type("monitor", monitor, str, "the name of a metric", f"choose of {', '.join(names)}")
    expect_one_of("monitor", monitor, names, "add it to metrics, or choose one of these")
    return chosen[names.index(monitor)]


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _loss(columns: Columns, kind: Kind, classes: int) -> float:
    return _mean(columns["losses"])


def _accuracy(columns: Columns, kind: Kind, classes: int) -> float:
    counted = float(columns["counted"].sum())
    return float(columns["right"].sum()) / counted if counted else math.nan


def _perplexity(columns: Columns, kind: Kind, classes: int) -> float:
    counted = float(columns["counted"].sum())
    mean = float(columns["token_loss"].sum()) / counted if counted else math.nan
    return math.exp(mean) if mean < 700 else math.inf


def _errors(columns: Columns) -> Tensor:
    found, truth = columns["predictions"], columns["truth"]
    if found.numel() != truth.numel():
        raise CloisterError(
            f"Expected as many outputs as labels, to compare them as numbers, found outputs of shape "
            f"{tuple(found.shape)} and labels of shape {tuple(truth.shape)}: choose the metric loss."
        )
    return _rows(found) - _rows(truth)


def _rows(values: Tensor) -> Tensor:
    return values.double().reshape(len(values), -1)


def _mae(columns: Columns, kind: Kind, classes: int) -> float:
    return _mean(_errors(columns).abs())


def _mse(columns: Columns, kind: Kind, classes: int) -> float:
    return _mean(_errors(columns).square())


def _rmse(columns: Columns, kind: Kind, classes: int) -> float:
    return math.sqrt(_mse(columns, kind, classes))


def _r2(columns: Columns, kind: Kind, classes: int) -> float:
    truth = _rows(columns["truth"])
    spread = (truth - truth.mean(0)).square().sum(0)
    if not bool((spread > 0).all()):
        return math.nan  # of labels that are all the same, nothing can be explained
    return _mean(1 - _errors(columns).square().sum(0) / spread)


def _counted_by_class(columns: Columns, kind: Kind, classes: int, name: str) -> float:
    """precision, recall or f1_score: the mean over the classes that are there or were predicted."""
    predictions, truth = columns["predictions"].long(), columns["truth"].long()
    if kind == "questions":
        function = getattr(classification(), f"multilabel_{name}")
        return float(function(predictions, truth, num_labels=classes, average="macro"))
    function = getattr(classification(), f"multiclass_{name}")
    return float(function(predictions, truth, num_classes=_known(predictions, classes), average="macro"))


def _known(predictions: Tensor, classes: int) -> int:
    """How many classes there are to tell apart: a model may have outputs for more than the labels have."""
    return max(classes, int(predictions.max()) + 1)


def _balanced_accuracy(columns: Columns, kind: Kind, classes: int) -> float:
    """The mean over the classes that are there of the share that is found; of a question, these are yes and no."""
    predictions, truth = columns["predictions"].long(), columns["truth"].long()
    if kind == "questions":
        each = [_recall(p, t, 2) for p, t in zip(predictions.unbind(1), truth.unbind(1), strict=True)]
        return sum(each) / len(each)
    return _recall(predictions, truth, _known(predictions, classes))


def _recall(predictions: Tensor, truth: Tensor, classes: int) -> float:
    found = classification().multiclass_recall(predictions, truth, num_classes=classes, average=None)
    return _mean(found[torch.bincount(truth.flatten(), minlength=classes) > 0])


def _ranked(columns: Columns, kind: Kind, classes: int, name: str, needs_both: bool) -> float:
    """AUROC or average precision: one class against the others, the mean over those for which it is defined."""
    scores, truth = columns["probabilities"].double(), columns["truth"].long()
    if not bool(scores.isfinite().all()):
        return math.nan
    function = getattr(classification(), f"binary_{name}")
    hits = truth if kind == "questions" else (truth.unsqueeze(1) == torch.arange(classes, device=truth.device)).long()
    if kind != "questions" and classes == 2:
        scores, hits = scores[:, 1:2], hits[:, 1:]  # the second class, as everywhere
    found = []
    for score, hit in zip(scores.unbind(1), hits.unbind(1), strict=False):  # a model may have outputs for more classes
        there = int(hit.sum())
        if there and (there < len(hit) or not needs_both):
            found.append(float(function(score, hit)))
    return sum(found) / len(found) if found else math.nan


def _concordance(columns: Columns, kind: Kind, classes: int) -> float:
    truth = columns["truth"]
    return concordance(columns["predictions"], truth[:, 0], truth[:, 1])


_CLASSES: tuple[Kind, ...] = ("classes", "questions", "levels")
_NUMBERS: tuple[Kind, ...] = ("numbers", "levels", "other")
_ALL: tuple[Kind, ...] = ("classes", "questions", "levels", "tokens", "numbers", "survival", "other")
_PREDICTED, _ANSWERS = ("predictions",), ("right", "counted")


def _catalogue(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _by_class(name: str) -> Callable[[Columns, Kind, int], float]:
    return partial(_counted_by_class, name=name)


CATALOGUE = _catalogue(
    Metric("accuracy", "share of answers that are right", (*_CLASSES, "tokens"), _ANSWERS, _accuracy),
    Metric("balanced_accuracy", "mean over classes of the share found", _CLASSES, _PREDICTED, _balanced_accuracy),
    Metric("f1", "mean over classes of F1", _CLASSES, _PREDICTED, _by_class("f1_score")),
    Metric("precision", "mean over classes of precision", _CLASSES, _PREDICTED, _by_class("precision")),
    Metric("recall", "mean over classes of recall", _CLASSES, _PREDICTED, _by_class("recall")),
    Metric(
        "auroc",
        "area under the ROC curve; of several classes, the mean of one against the rest",
        _CLASSES,
        ("probabilities",),
        partial(_ranked, name="auroc", needs_both=True),
    ),
    Metric(
        "average_precision",
        "area under the precision-recall curve; of several classes, the mean of one against the rest",
        _CLASSES,
        ("probabilities",),
        partial(_ranked, name="average_precision", needs_both=False),
    ),
    Metric("mae", "mean absolute error, in the labels' units", _NUMBERS, _PREDICTED, _mae),
    Metric("mse", "mean squared error", _NUMBERS, _PREDICTED, _mse),
    Metric("rmse", "root of the mean squared error", _NUMBERS, _PREDICTED, _rmse),
    Metric("r2", "share of the labels' variance that is explained", _NUMBERS, _PREDICTED, _r2),
    Metric(
        "perplexity",
        "exp of the mean loss of a token",
        ("tokens",),
        ("token_loss", "counted"),
        _perplexity,
    ),
    Metric(
        "concordance", "Harrell's C: who has the event earlier has more risk", ("survival",), _PREDICTED, _concordance
    ),
    Metric("loss", "the mean loss", _ALL, (), _loss),
)
"""Every metric by its name."""


_BY_TORCHMETRICS = frozenset({"balanced_accuracy", "f1", "precision", "recall", "auroc", "average_precision"})
