"""How good a model is on the test set."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cloister.client.losses import Loss, main_output
from cloister.client.objective import explained
from cloister.core import Layout
from cloister.data.task import Task
from cloister.runs.client_scores import ClientScores, mean_by_client, scored_by_client
from cloister.runs.metric_catalogue import CATALOGUE, Columns, Watched, watched


@dataclass(frozen=True)
class Score:
    """How a model does on the test set (accuracies are None where labels are no classes).

    `accuracy` is over all labels; `mean_client_accuracy` is the mean over clients, each counting the same, of the
    accuracy on its own test samples (None where clients have none). `metrics` are those that were asked for, by name,
    None where one is undefined. The loss of Cox is that within batches, as in training.
    """

    loss: float | None
    accuracy: float | None
    mean_client_accuracy: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    monitor: str = "accuracy"
    clients: ClientScores | None = None
    """Client by client, where that was asked for and clients have test samples of their own."""

    def line(self) -> dict[str, Any]:
        """What stands in a round's line. The watched metric is named where it is not accuracy."""
        usual = {"loss": self.loss, "accuracy": self.accuracy, "mean_client_accuracy": self.mean_client_accuracy}
        named = {} if self.monitor == "accuracy" else {"monitor": self.monitor}
        return {**usual, **{name: value for name, value in self.metrics.items() if name not in usual}, **named}


Scorer = Callable[..., Score]
"""(w, clients=False) -> Score."""
Collector = Callable[..., Columns]
"""(w, rows=None) -> what metrics are computed from, on the whole test set or on some rows of it."""


def scorer(
    module: nn.Module, layout: Layout, task: Task, like: Tensor, watching: Watched | None = None, batch_size: int = 2048
) -> Scorer:
    """A function that scores a flat vector on the task's test set, kept on the device of `like`.

    Every test sample goes through the model once, however many clients it counts for.
    """
    watching = watching or watched(task)
    collect = collector(module, layout, task, like, watching, batch_size)
    local = (
        None if task.local_test is None else (task.local_test[0].to(like.device), task.local_test[1].to(like.device))
    )

    def score(w: Tensor, clients: bool = False) -> Score:
        if not len(task.test_labels):
            return Score(None, None, None, {one.name: None for one in watching.metrics}, watching.monitor.name)
        columns = collect(w)
        found = {one.name: one(columns, watching.kind, watching.classes) for one in watching.metrics}
        accuracy = CATALOGUE["accuracy"](columns, watching.kind, 0) if "right" in columns else None
        return Score(
            float(columns["losses"].mean()),
            accuracy,
            None if local is None or "right" not in columns else _mean_over_clients(columns, local),
            found,
            watching.monitor.name,
            scored_by_client(task, watching, columns) if clients else None,
        )

    if len(task.test_labels) and watching.columns - {"right", "counted"}:
        with explained("metrics that fit model and data"):  # and a misfit is found before anything is charged
            columns = collect(like, torch.arange(min(2, len(task.test_labels))))
            for metric in watching.metrics:
                metric(columns, watching.kind, watching.classes)
    return score


def collector(
    module: nn.Module, layout: Layout, task: Task, like: Tensor, watching: Watched, batch_size: int = 2048
) -> Collector:
    """A function that asks the model with a flat vector of parameters for what metrics are computed from."""
    still = copy.deepcopy(module).eval()
    inputs, labels = task.test_inputs.to(like.device), task.test_labels.to(like.device)

    @torch.no_grad()
    def collect(w: Tensor, rows: Tensor | None = None) -> Columns:
        own = (inputs, labels) if rows is None else (inputs[rows.to(like.device)], labels[rows.to(like.device)])
        parts, views = [], layout.views(w)
        for some, truth in zip(*(torch.split(part, batch_size) for part in own), strict=True):
            outputs = torch.func.functional_call(still, views, (task.preprocessing.test(some, w.dtype),))
            parts.append(columns_of(task.loss, watching, outputs, truth))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    return collect


def columns_of(loss: Loss, watching: Watched, outputs: Any, truth: Tensor) -> dict[str, Tensor]:
    """What the metrics of a run are computed from, for some samples; accuracy is there whenever there is one."""
    losses = loss(outputs, truth).double()
    found = {"losses": _rows(losses).mean(1)}
    wanted = watching.columns
    answers = watching.kind in CATALOGUE["accuracy"].fits
    if answers or "predictions" in wanted:
        predictions = loss.predict(main_output(outputs))
        if answers:
            counted = _rows(truth >= 0 if watching.kind == "tokens" else torch.ones_like(truth, dtype=torch.bool))
            right = _rows(predictions == truth) & counted
            found |= {"right": right.sum(1).double(), "counted": counted.sum(1).double()}
        if "predictions" in wanted:
            found["predictions"] = predictions
    if "probabilities" in wanted:
        assert loss.predict_proba is not None
        found["probabilities"] = loss.predict_proba(main_output(outputs))
    if "token_loss" in wanted:
        found["token_loss"] = found["losses"] * found["counted"]  # of a sample, the loss is the mean over its tokens
    return {**found, "truth": truth} if wanted - {"right", "counted"} else found


def _rows(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def _mean_over_clients(columns: Columns, local: tuple[Tensor, ...]) -> float | None:
    rows, owners = local
    accuracies = mean_by_client(columns["right"], columns["counted"], rows, owners)
    accuracies = accuracies[accuracies.isfinite()]
    return float(accuracies.mean()) if len(accuracies) else None
