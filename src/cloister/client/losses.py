"""Losses by name: what is minimized, how many outputs a model needs for it, and how these are read afterwards.

A loss says how wrong a model is on every sample by itself. The one exception is Cox's partial likelihood, which
compares the samples of a batch with one another: it is for methods that protect whole clients.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cloister.errors import expect, expect_one_of, expect_positive, nearest

LossFunction = Callable[..., Tensor]
"""(outputs [b, ...], labels [b, ...]) -> losses, one or more per sample, batch first."""


def _as_they_are(outputs: Tensor) -> Tensor:
    return outputs


@dataclass(frozen=True, repr=False)
class Loss:
    """What is minimized, and how a model's outputs are read.

    `function(outputs, labels)` gives losses, batch first; with `mixes_samples` it is also told which samples count,
    `function(outputs, labels, mask)`. `outputs(classes, width)` is how many outputs a model needs, where labels have so
    many classes, or are so many numbers. `predict` turns outputs into what people read (a class, a number, a risk),
    `predict_proba` into probabilities, where there are any. `metrics` are shown unless others are asked for.
    `made_up` gives labels of nobody in the form of some labels, such that every output has a gradient: models are tried
    on them before they see anybody's.
    """

    name: str
    function: LossFunction
    settings: Mapping[str, Any] = field(default_factory=dict)
    outputs: Callable[[int | None, int], int] = lambda classes, width: classes or width
    predict: Callable[[Tensor], Tensor] = _as_they_are
    predict_proba: Callable[[Tensor], Tensor] | None = None
    metrics: tuple[str, ...] = ()
    made_up: Callable[[Tensor], Tensor] = torch.zeros_like
    classes: bool = False
    """Whether labels are whole numbers from 0."""
    mixes_samples: bool = False
    own: bool = False
    """Whether it is somebody's own function, which is given all that the model gives (a dict, a tuple)."""

    def __repr__(self) -> str:
        """One line."""
        settings = "".join(f", {name} {value}" for name, value in self.settings.items())
        return f"<Loss {self.name}{settings}>"

    def __call__(self, outputs: Any, labels: Tensor, mask: Tensor | None = None) -> Tensor:
        """The losses of a batch, of which `mask` says what counts (by default everything)."""
        outputs = outputs if self.own else main_output(outputs)
        if not self.mixes_samples:
            return self.function(outputs, labels)
        there = torch.ones(len(labels), dtype=torch.bool, device=labels.device) if mask is None else mask
        return self.function(outputs, labels, there)


def main_output(outputs: Any) -> Tensor:
    """The one tensor that a model's answer is read from: `logits` of a dict, the first of a tuple.

    >>> main_output((torch.ones(2), None)).shape
    torch.Size([2])
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        tensors = {name: value for name, value in outputs.items() if isinstance(value, Tensor)}
        named = tensors.get("logits", next(iter(tensors.values())) if len(tensors) == 1 else None)
        remedy = 'name one of them "logits"'
        expect(named is not None, "a model whose outputs have one tensor, or one named logits", list(outputs), remedy)
        assert named is not None
        return named
    if hasattr(outputs, "logits"):
        return main_output(outputs.logits)
    several = isinstance(outputs, Sequence) and len(outputs) > 0 and isinstance(outputs[0], Tensor)
    remedy = "return a tensor, a dict with logits, or a tuple that begins with a tensor"
    expect(several, "a model that returns tensors", type(outputs).__name__, remedy)
    first: Tensor = outputs[0]
    return first


def _cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    # What F.cross_entropy computes for labels that are classes; under vmap that one is worked out in Python each time.
    return -F.log_softmax(outputs, 1).gather(1, labels.unsqueeze(1)).squeeze(1)


cross_entropy = Loss(
    "cross_entropy",
    _cross_entropy,
    predict=lambda outputs: outputs.argmax(1),
    predict_proba=lambda outputs: outputs.softmax(1),
    metrics=("accuracy",),
    classes=True,
)
"""The loss of a classifier: labels are classes from 0."""


def _next_token(outputs: Tensor, labels: Tensor) -> Tensor:
    counts = labels >= 0
    found = -F.log_softmax(outputs, -1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.where(counts, found, 0.0).sum(1) / counts.sum(1).clamp(min=1)


next_token = Loss(
    "next_token",
    _next_token,
    predict=lambda outputs: outputs.argmax(-1),
    predict_proba=lambda outputs: outputs.softmax(-1),
    metrics=("accuracy", "perplexity"),
    classes=True,
)
"""A language model: outputs [b, T, vocabulary], labels [b, T] the token that follows each; below 0 is padding."""


def _multi_label(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.softplus(outputs) - labels * outputs  # binary cross-entropy with logits, batched under vmap


multi_label = Loss(
    "multi_label",
    _multi_label,
    outputs=lambda classes, width: width,
    predict=lambda outputs: (outputs > 0).long(),
    predict_proba=torch.sigmoid,
    metrics=("accuracy", "f1"),
)
"""Several yes-or-no questions at once: labels [b, k] are 0 or 1."""


def _ordinal(outputs: Tensor, labels: Tensor) -> Tensor:
    above = (labels.unsqueeze(1) > torch.arange(outputs.shape[1], device=labels.device)).to(outputs.dtype)
    return (F.softplus(outputs) - above * outputs).sum(1)


def _ordinal_levels(outputs: Tensor) -> Tensor:
    above = torch.sigmoid(outputs).cummin(1).values  # P(label > j), which falls with j
    ends = torch.ones_like(above[:, :1])
    return torch.cat([ends, above], 1) - torch.cat([above, torch.zeros_like(ends)], 1)


ordinal = Loss(
    "ordinal",
    _ordinal,
    outputs=lambda classes, width: (classes or 2) - 1,
    predict=lambda outputs: (torch.sigmoid(outputs).cummin(1).values > 0.5).sum(1),
    predict_proba=_ordinal_levels,
    metrics=("accuracy", "mae"),
    classes=True,
)
"""Classes in an order: output j is the log-odds that the label is above j (cumulative logits)."""


def mse(center: float = 0.0, scale: float = 1.0) -> Loss:
    """Squared error of numbers. The model learns (label - center) / scale, constants that are declared, not computed;
    predictions are in the labels' own units."""
    return _regression("mse", lambda found, wanted: (found - wanted).square(), center, scale)


def mae(center: float = 0.0, scale: float = 1.0) -> Loss:
    """Absolute error of numbers; see `mse`."""
    return _regression("mae", lambda found, wanted: (found - wanted).abs(), center, scale)


def huber(center: float = 0.0, scale: float = 1.0) -> Loss:
    """Squared error near the label, absolute error from one `scale` on; see `mse`."""

    def error(found: Tensor, wanted: Tensor) -> Tensor:
        far = (found - wanted).abs()
        return torch.where(far < 1, 0.5 * far.square(), far - 0.5)

    return _regression("huber", error, center, scale)


def _regression(name: str, error: Callable[[Tensor, Tensor], Tensor], center: float, scale: float) -> Loss:
    expect_positive("scale", scale, "by how much labels typically differ from the center")
    number = isinstance(center, (int, float)) and not isinstance(center, bool) and math.isfinite(center)
    expect(number, "center to be a finite number", center, "give a typical label, or 0")

    def function(outputs: Tensor, labels: Tensor) -> Tensor:
        wanted = (labels.to(outputs.dtype) - center) / scale
        return error(outputs.reshape(len(outputs), -1), wanted.reshape(len(wanted), -1)).mean(1)

    def predict(outputs: Tensor) -> Tensor:
        found = outputs.reshape(len(outputs), -1) * scale + center
        return found.squeeze(1) if found.shape[1] == 1 else found

    settings = {"center": center, "scale": scale}
    return Loss(name, function, settings, outputs=lambda classes, width: width, predict=predict, metrics=("mae", "r2"))


def hazards(intervals: Sequence[float]) -> Loss:
    """Survival by discrete-time hazards: labels [b, 2] are a time and whether the event happened then (1) or follow-up
    ended (0). `intervals` are the ends of the intervals, declared in advance; output j is the log-odds that the event
    happens in interval j of those who came so far. A loss for every sample by itself: minus the log of the product of
    conditional probabilities.

    An interval includes its begin and not its end. Whoever's follow-up ends within an interval says nothing about it.
    After the last end nobody is looked at: an event there counts as having survived.
    """
    several = isinstance(intervals, (list, tuple)) and len(intervals) > 0
    numbers = several and all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in intervals)
    rising = numbers and intervals[0] > 0 and all(one < other for one, other in pairwise(intervals))
    expect(rising, "intervals that end at rising times above 0", intervals, "give the ends, such as [365, 730]")
    ends = [float(end) for end in intervals]
    return Loss(
        "hazards",
        partial(_hazards, ends=ends),
        {"intervals": ends},
        outputs=lambda classes, width: len(ends),
        predict=lambda outputs: F.softplus(outputs).sum(1),  # the cumulative hazard: who has more is at more risk
        predict_proba=lambda outputs: (-F.softplus(outputs)).cumsum(1).exp(),  # surviving each interval
        metrics=("concordance",),
        made_up=_long_survivors,
    )


def _long_survivors(labels: Tensor) -> Tensor:
    """Labels whose loss depends on every output; at time 0 with no event, none would."""
    return torch.full_like(labels, 1e30)


def _hazards(outputs: Tensor, labels: Tensor, ends: Sequence[float]) -> Tensor:
    time, event = labels[:, 0], labels[:, 1] > 0
    # Numbers of Python, and not a tensor of them: CUDA graphs cannot copy from the host.
    after = torch.stack([time >= end for end in ends], 1)
    before = torch.cat([torch.ones_like(after[:, :1]), after[:, :-1]], 1)
    happened = before & ~after & event.unsqueeze(1)
    return torch.where(after, F.softplus(outputs), torch.where(happened, F.softplus(-outputs), 0.0)).sum(1)


def _cox(outputs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    risk, time, event = outputs.reshape(len(outputs)), labels[:, 0], labels[:, 1].to(outputs.dtype)
    at_risk = (time.unsqueeze(0) >= time.unsqueeze(1)) & mask.unsqueeze(0)
    at_risk = at_risk | torch.eye(len(risk), dtype=torch.bool, device=risk.device)  # so that padding stays finite
    together = torch.where(at_risk, risk.unsqueeze(0), -torch.inf).logsumexp(1)
    return event * (together - risk)


def _rising_times(labels: Tensor) -> Tensor:
    """Events one after the other, each of them with somebody at risk."""
    times = torch.arange(1, len(labels) + 1, device=labels.device).to(labels.dtype)
    return torch.stack([times, torch.ones_like(times)], 1)


cox = Loss(
    "cox",
    _cox,
    outputs=lambda classes, width: 1,
    predict=lambda outputs: outputs.reshape(len(outputs)),
    metrics=("concordance",),
    made_up=_rising_times,
    mixes_samples=True,
)
"""Survival by Cox's partial likelihood within a batch (Breslow's ties); labels as in `hazards`.

A sample whose event happened has the log of the summed risks of all that were still at risk then, itself included,
minus its own; others have 0. So the loss of a batch depends on who else is in it, and needs batches of several.
"""

CATALOGUE: dict[str, Callable[..., Loss] | Loss] = {
    "cross_entropy": cross_entropy,
    "next_token": next_token,
    "multi_label": multi_label,
    "ordinal": ordinal,
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "hazards": hazards,
    "cox": cox,
}


def loss_of(loss: Loss | LossFunction | str, **settings: Any) -> Loss:
    """A loss by its name (with settings, where it has some), as it is, or from somebody's own function."""
    if isinstance(loss, str):
        expect_one_of("loss", loss, CATALOGUE, "choose one, or give a function of outputs and labels")
        known = CATALOGUE[loss]
        taken = {} if isinstance(known, Loss) else inspect.signature(known).parameters
        for name in settings:
            remedy = nearest(name, taken) if taken else "leave it out"
            expect(name in taken, f"settings of the loss {loss}", name, remedy)
        if isinstance(known, Loss):
            return known
        if loss == "hazards":
            remedy = "declare where they end, as in cloister.client.losses.hazards([365, 730, 1825])"
            expect("intervals" in settings, "intervals for the loss hazards", "none", remedy)
        return known(**settings)
    expect(not settings, "settings of a loss that is given by name", ", ".join(settings), "leave them out")
    if isinstance(loss, Loss):
        return loss
    fine = callable(loss) and not isinstance(loss, type)
    expect(fine, "loss to be a name or a function", loss, "of outputs and labels, with one loss per sample")
    name = getattr(loss, "__name__", type(loss).__name__)
    return Loss(name, loss, own=True)


def made_up_labels(loss: Loss, labels: Tensor, count: int, classes: int | None) -> Tensor:
    """So many labels of nobody, in the form of some labels. For somebody's own loss over classes they take turns: what
    it does with one class says nothing about what it does with another, or with both in one batch."""
    made = loss.made_up(labels[:1].repeat(count, *[1] * (labels.dim() - 1)))
    if not loss.own or classes is None or made.is_floating_point():
        return made
    turns = torch.arange(made.numel(), device=made.device).view(made.shape) % classes
    return turns.to(made.dtype)


def of_classes(loss: Loss) -> Loss:
    """Somebody's own loss over classes, whose outputs are read as those of `cross_entropy` unless it says how."""
    if not loss.own or loss.predict is not _as_they_are:
        return loss
    usual = cross_entropy
    return replace(
        loss, predict=usual.predict, predict_proba=usual.predict_proba, metrics=loss.metrics or usual.metrics
    )


def expect_labels(what: str, labels: Tensor, loss: Loss) -> None:
    """The labels are such as the loss takes."""
    if loss.name in ("hazards", "cox"):
        shape = labels.dim() == 2 and labels.shape[1] == 2
        expect(shape, f"{what} to be pairs (time, event)", tuple(labels.shape), "give two numbers for every sample")
        events = bool(((labels[:, 1] == 0) | (labels[:, 1] == 1)).all())
        expect(events, f"{what} whose events are 0 or 1", "others", "1: it happened at that time; 0: follow-up ended")
        remedy = "count time from when follow-up began"
        expect(bool((labels[:, 0] >= 0).all()), f"{what} whose times are not negative", "others", remedy)
    if loss.name == "multi_label":
        expect(labels.dim() == 2, f"{what} of shape [n, k]", tuple(labels.shape), "give a 0 or 1 for every question")
        fine = bool(((labels == 0) | (labels == 1)).all())
        expect(fine, f"{what} to be 0 or 1", "others", "multi_label answers yes-or-no questions")
